// The tables of `kdtree bench`: aligned columns on stdout as rows arrive, and the same as CSV.
#pragma once

#include <string>
#include <vector>

namespace kdt::apps {

struct Column {
  std::string name;
  int width;          // on the terminal; a wider cell shifts its row
  bool text = false;  // to the left; numbers stand to the right
};

// What the header of a CSV file says of the run.
struct RunInfo {
  int threads = 0;
  std::string subject;  // models, prompts or roof: whatever the numbers depend on
  std::string method;   // how they were measured
};

class BenchTable {
 public:
  // Prints the header row.
  BenchTable(std::vector<Column> columns, std::string csv_path);

  void row(const std::vector<std::string>& cells);
  // Writes the CSV file, all or nothing: comment lines (commit, date, CPU, load, `info`), names,
  // rows. Does nothing without a path.
  void save(const RunInfo& info) const;

 private:
  void print(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::string csv_path_;
};

// Commit and time, for the first line of a CSV file.
std::string bench_origin();

double median(std::vector<double> values);  // of at least one

}  // namespace kdt::apps
