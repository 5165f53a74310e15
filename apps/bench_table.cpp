#include "apps/bench_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>

#include "apps/output.h"
#include "base/atomic_file.h"

namespace kdt::apps {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name")) return line.substr(line.find(':') + 2);
  return "unknown";
}

std::string utc_now() {
  const std::time_t now = std::time(nullptr);
  char text[32];
  std::strftime(text, sizeof text, "%Y-%m-%d %H:%M UTC", std::gmtime(&now));
  return text;
}

std::string load_average() {
  double load = 0;
  return ::getloadavg(&load, 1) == 1 ? fmt::format("{:.2f}", load) : "unknown";
}

std::string csv_cell(const std::string& cell) {
  if (cell.find_first_of(",\"\n") == std::string::npos) return cell;
  std::string quoted = "\"";
  for (const char c : cell) quoted += c == '"' ? std::string("\"\"") : std::string(1, c);
  return quoted + '"';
}

std::string csv_line(const std::vector<std::string>& cells) {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) line += (i ? "," : "") + csv_cell(cells[i]);
  return line + '\n';
}

}  // namespace

BenchTable::BenchTable(std::vector<Column> columns, std::string csv_path)
    : columns_(std::move(columns)), csv_path_(std::move(csv_path)) {
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  print(names);
}

void BenchTable::print(const std::vector<std::string>& cells) const {
  std::string line;
  for (size_t i = 0; i < cells.size(); ++i) {
    const Column& column = columns_[i];
    line += i ? "  " : "";
    line += column.text ? fmt::format("{:<{}}", cells[i], column.width)
                        : fmt::format("{:>{}}", cells[i], column.width);
  }
  line.erase(line.find_last_not_of(' ') + 1);
  write_out(line + '\n');
}

void BenchTable::row(const std::vector<std::string>& cells) {
  print(cells);
  rows_.push_back(cells);
}

void BenchTable::save(const RunInfo& info) const {
  if (csv_path_.empty()) return;
  std::string text = fmt::format("# {}\n# cpu: {}; threads used: {}; load average at the end: {}\n",
                                 bench_origin(), cpu_name(), info.threads, load_average());
  text += fmt::format("# {}\n# method: {}\n", info.subject, info.method);
  std::vector<std::string> names;
  for (const Column& column : columns_) names.push_back(column.name);
  text += csv_line(names);
  for (const std::vector<std::string>& row : rows_) text += csv_line(row);
  AtomicFile file(csv_path_);
  file.write(text.data(), text.size());
  file.commit();
}

std::string bench_origin() {
  return fmt::format("kdtree bench, commit {}, {}", KDT_COMMIT, utc_now());
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

}  // namespace kdt::apps
