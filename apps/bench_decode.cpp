// kdtree bench --decode: plain, chain and trees on the same prompts.
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>

#include "apps/bench_run.h"
#include "apps/bench_table.h"
#include "apps/output.h"
#include "base/error.h"

namespace kdt::apps {
namespace {

using engine::DecodeMode;

struct Mode {
  const char* name;
  DecodeMode decode;
  int budget;
  Outcome outcome = {};              // of the last repeat
  std::vector<double> seconds = {};  // of each repeat
};

std::vector<Mode> modes_of(const BenchOptions& o) {
  std::vector<Mode> modes{{"plain", DecodeMode::kPlain, 0}};
  if (o.draft_dir.empty()) return modes;
  modes.push_back({"DFlash chain", DecodeMode::kChain, 0});
  for (const int budget : o.budgets) modes.push_back({"DDTree", DecodeMode::kTree, budget});
  return modes;
}

void run_mode(engine::Engine& engine, const std::vector<Ids>& prompts, int max_tokens, Mode* mode) {
  mode->outcome = {};
  for (const Ids& prompt : prompts)
    run_prompt(engine, prompt, mode->decode, mode->budget, max_tokens, &mode->outcome);
  mode->seconds.push_back(mode->outcome.seconds);
}

// What runs, on stderr where it is a terminal: the table comes when all modes are through.
void show_progress(const Mode& mode, int repeat, int n_repeats) {
  if (!::isatty(STDERR_FILENO)) return;
  fmt::print(stderr, "\r\033[Krepeat {} of {}: {} {}", repeat + 1, n_repeats, mode.name,
             mode.budget ? fmt::format("{}", mode.budget) : "");
}

void end_progress() {
  if (::isatty(STDERR_FILENO)) fmt::print(stderr, "\r\033[K");
}

std::vector<std::string> row_of(const Mode& mode, double plain_seconds) {
  const Outcome& run = mode.outcome;
  const double s = std::max(median(mode.seconds), 1e-9);
  const double rounds = static_cast<double>(std::max<int64_t>(run.n_rounds, 1));
  return {mode.name,
          mode.budget ? fmt::format("{}", mode.budget) : "",
          fmt::format("{}", run.n_tokens + static_cast<int64_t>(run.tokens.size())),
          fmt::format("{}", run.n_rounds),
          fmt::format("{:.2f}", run.acceptance()),
          fmt::format("{:.3f}", 1e3 * s / rounds),
          fmt::format("{:.0f}", static_cast<double>(run.n_tokens) / s),
          fmt::format("{:.2f}", plain_seconds / s)};
}

}  // namespace

int bench_decode(const BenchOptions& o) {
  const std::vector<Ids> prompts = bench_prompts(o);
  std::vector<Mode> modes = modes_of(o);
  int max_budget = 0;
  for (const Mode& mode : modes) max_budget = std::max(max_budget, mode.budget);
  const auto engine = bench_engine(cpu_backend(), o, prompts, max_budget);
  BenchTable table({{"mode", 12, true},
                    {"budget", 6},
                    {"tokens", 6},
                    {"rounds", 6},
                    {"acceptance", 10},
                    {"ms/round", 8},
                    {"tokens/s", 8},
                    {"speedup", 7}},
                   o.csv);
  Mode warm_up = modes.back();
  run_mode(*engine, prompts, std::min(o.max_tokens, 16), &warm_up);
  // Modes take turns, so that a slow spell of the machine hits them all.
  for (int repeat = 0; repeat < o.repeats; ++repeat)
    for (Mode& mode : modes) {
      show_progress(mode, repeat, o.repeats);
      run_mode(*engine, prompts, o.max_tokens, &mode);
    }
  end_progress();

  bool equal = true;
  for (const Mode& mode : modes) {
    table.row(row_of(mode, median(modes[0].seconds)));
    equal &= mode.outcome.tokens == modes[0].outcome.tokens;
  }
  table.save({.threads = cpu_threads(o.threads),
              .subject = bench_subject(o, prompts.size()),
              .method = fmt::format(
                  "median of {} repeats, modes taking turns; time and tokens/s of decoding only, "
                  "as a prompt's first token belongs to its prefill; speedup over plain",
                  o.repeats)});
  if (!equal)
    throw_error(ErrorCode::kInternal, "the modes gave different tokens; they must give the same");
  if (modes.size() > 1) write_out("Every mode gave the same tokens.\n");
  return 0;
}

}  // namespace kdt::apps
