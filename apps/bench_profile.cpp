// kdtree bench --profile: where the time of a decode round goes, op by op.
#include <fmt/format.h>

#include "apps/bench_roof.h"
#include "apps/bench_run.h"
#include "apps/bench_table.h"
#include "apps/bench_timed_backend.h"
#include "apps/output.h"
#include "base/error.h"

namespace kdt::apps {
namespace {

// All runs together, and what the machine could do.
struct Profile {
  Outcome outcome;
  std::vector<OpTime> ops;
  double phases[kPhaseCount];
  Roof roof;

  double per_round(double x) const { return x / static_cast<double>(outcome.n_rounds); }
};

Profile measure(const BenchOptions& o, const std::vector<Ids>& prompts, int budget) {
  Profile profile{.roof = measure_cpu_roof(cpu_threads(o.threads))};
  TimedBackend timed(cpu_backend());
  const auto engine = bench_engine(timed.table(), o, prompts, budget);
  const auto mode = budget > 0 ? engine::DecodeMode::kTree : engine::DecodeMode::kPlain;
  for (int repeat = 0; repeat <= o.repeats; ++repeat) {
    if (repeat == 1) {  // the first run warmed up
      timed.clear();
      profile.outcome = {};
    }
    for (const Ids& prompt : prompts) {
      timed.expect_prefill();
      run_prompt(*engine, prompt, mode, budget, o.max_tokens, &profile.outcome);
    }
  }
  if (profile.outcome.n_rounds == 0)
    throw_error(ErrorCode::kInvalidArgument,
                "no decode round ran: the prompt's first token ended the answer; try another one");
  profile.ops = timed.ops();
  for (int i = 0; i < kPhaseCount; ++i)
    profile.phases[i] = timed.phase_seconds(static_cast<Phase>(i));
  return profile;
}

// One line: what it took and what it must move and compute, per round; roof_s 0 for none.
std::vector<std::string> row_of(const std::string& name, const std::string& calls, double s,
                                const OpCost& cost, double roof_s, double wall) {
  const auto positive = [](double x, const char* format) {
    return x > 0 ? fmt::format(fmt::runtime(format), x) : "";
  };
  return {name,
          calls,
          fmt::format("{:.1f}", 1e6 * s),
          fmt::format("{:.1f}", 100 * s / wall),
          positive(cost.bytes / s * 1e-9, "{:.1f}"),
          positive(cost.flops / s * 1e-9, "{:.1f}"),
          positive(roof_s * 1e6, "{:.1f}"),
          positive(100 * roof_s / s, "{:.0f}")};
}

// Prints the rows; returns the roof of a round.
double print_ops(const Profile& profile, BenchTable* table) {
  const double wall = profile.per_round(profile.outcome.seconds);
  OpCost sum;
  for (const OpTime& op : profile.ops) {
    sum.bytes += profile.per_round(op.cost.bytes);
    sum.flops += profile.per_round(op.cost.flops);
  }
  double op_seconds = 0, floor = 0;
  for (const OpTime& op : profile.ops) {
    const OpCost cost{profile.per_round(op.cost.bytes), profile.per_round(op.cost.flops)};
    const double s = profile.per_round(op.seconds);
    // A round touches each weight once, so data comes from where a whole round's bytes lie.
    const double roof_s = profile.roof.seconds(cost, sum.bytes);
    const double calls = profile.per_round(static_cast<double>(op.calls));
    table->row(row_of(op.name, fmt::format("{:g}", calls), s, cost, roof_s, wall));
    op_seconds += s;
    floor += roof_s;
  }
  table->row(row_of("all ops", "", op_seconds, sum, floor, wall));
  table->row(row_of("between ops", "", wall - op_seconds, {}, 0, wall));
  table->row(row_of("round", "", wall, sum, floor, wall));
  return floor;
}

}  // namespace

int bench_profile(const BenchOptions& o) {
  const std::vector<Ids> prompts = bench_prompts(o);
  const int budget = o.draft_dir.empty() ? 0 : o.budget;
  const std::vector<Column> columns{{"op", 30, true}, {"calls", 6}, {"us/round", 9},
                                    {"share %", 7},   {"GB/s", 6},  {"GFLOP/s", 7},
                                    {"roof us", 8},   {"% roof", 6}};
  BenchTable table(columns, o.csv);
  const Profile profile = measure(o, prompts, budget);
  const double floor = print_ops(profile, &table);
  const double wall = profile.per_round(profile.outcome.seconds);
  const std::string mode =
      budget > 0 ? fmt::format("DDTree with budget {}", budget) : "plain decoding";
  std::string phases;
  for (int i = 0; i < kPhaseCount; ++i)
    phases += fmt::format("{}{} {:.1f}%", i ? ", " : "", kPhaseNames[i],
                          100 * profile.phases[i] / profile.outcome.seconds);
  write_out(
      fmt::format("\n{}, acceptance length {:.2f}\nphases: {}\nroof: {}\n"
                  "A round takes {:.2f} times what our own roofline allows.\n",
                  mode, profile.outcome.acceptance(), phases, profile.roof.text(), wall / floor));
  table.save(
      {.threads = profile.roof.threads,
       .subject = fmt::format("{}; {}; roof: {}", bench_subject(o, prompts.size()), mode,
                              profile.roof.text()),
       .method = fmt::format(
           "ops of {} rounds timed inside the engine after a warm-up run; roof: bytes at the "
           "bandwidth of as many bytes as a round moves, or multiply-adds, whichever is "
           "slower; between ops: scheduler, copies and the timers themselves",
           profile.outcome.n_rounds)});
  return 0;
}

}  // namespace kdt::apps
