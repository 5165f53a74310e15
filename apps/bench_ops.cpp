// kdtree bench: every op of the backend's table on the shapes of a decode round.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cmath>

#include "apps/bench.h"
#include "apps/bench_cases.h"
#include "apps/bench_roof.h"
#include "apps/bench_table.h"
#include "apps/output.h"
#include "base/error.h"

namespace kdt::apps {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_of(const Backend& backend, const std::function<void()>& run, int64_t times) {
  const auto start = Clock::now();
  for (int64_t i = 0; i < times; ++i) run();
  backend.synchronize({});
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Median seconds of one run, over samples of at least 50 us.
double measure(const Backend& backend, const std::function<void()>& run, double min_time) {
  constexpr double kSample = 50e-6;
  constexpr size_t kMinSamples = 3;
  const double first = std::max(seconds_of(backend, run, 1), 1e-9);
  const auto times = static_cast<int64_t>(std::ceil(kSample / first));
  std::vector<double> samples;
  for (double spent = 0; spent < min_time || samples.size() < kMinSamples;) {
    const double s = seconds_of(backend, run, times);
    spent += s;
    samples.push_back(s / static_cast<double>(times));
  }
  return median(std::move(samples));
}

bool is_wanted(const BenchOptions& o, const BenchCase& c) {
  return o.ops.empty() || std::find(o.ops.begin(), o.ops.end(), c.op) != o.ops.end();
}

// A ratio of any size with three digits.
std::string digits(double x) {
  return fmt::format("{:.{}f}", x, x >= 100 ? 0 : x >= 10 ? 1 : 2);
}

std::vector<BenchModel> models_of(const BenchOptions& o) {
  if (o.model_dir.empty()) return {tiny_bench_model(), k26_shard_bench_model()};
  BenchModel model{.name = o.model_dir, .target = checkpoint::load_target_config(o.model_dir)};
  model.draft =
      o.draft_dir.empty() ? tiny_bench_model().draft : checkpoint::load_draft_config(o.draft_dir);
  if (!o.draft_dir.empty()) checkpoint::check_pair(model.target, model.draft);
  return {model};
}

}  // namespace

int bench_ops(const BenchOptions& o) {
  const Backend& backend = cpu_backend();
  const std::vector<BenchModel> models = models_of(o);
  write_out("measuring this machine's roof ...\n");
  const Roof roof = measure_cpu_roof(cpu_threads(o.threads));
  write_out(roof.text() + "\n\n");
  BenchTable table({{"op", 16, true},
                    {"shape", 49, true},
                    {"us", 9},
                    {"GB/s", 6},
                    {"GFLOP/s", 7},
                    {"% roof", 6}},
                   o.csv);
  bool sound = true;
  for (const BenchModel& model : models) {
    write_out(model.name + "\n");
    for (const BenchCase& c : bench_cases(model)) {
      if (!is_wanted(o, c)) continue;
      const PreparedCase prepared = c.prepare(backend);
      prepared.run();
      if (!prepared.sound()) {
        sound = false;
        write_out(fmt::format("{:<16}  {}: WRONG OUTPUT, not timed\n", c.op, c.shape));
        continue;
      }
      const double s = measure(backend, prepared.run, o.min_time);
      const OpCost cost = prepared.cost();
      table.row({c.op, c.shape, digits(s * 1e6), digits(cost.bytes / s * 1e-9),
                 digits(cost.flops / s * 1e-9),
                 fmt::format("{:.0f}", 100 * roof.seconds(cost, cost.bytes) / s)});
    }
  }
  table.save(
      {.threads = roof.threads,
       .subject = "roof: " + roof.text(),
       .method = fmt::format(
           "median of samples over {} s per case, each at least 50 us; random data, the same "
           "in every call, so caches are warm; % roof compares with the slower of moving the "
           "bytes (at the bandwidth of that many bytes) and the multiply-adds",
           o.min_time)});
  if (!sound)
    throw_error(ErrorCode::kNumeric, "an op gave numbers that are not finite or all zero");
  return 0;
}

}  // namespace kdt::apps
