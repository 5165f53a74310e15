#include "apps/bench.h"

#include <fmt/format.h>

#include <thread>

#include "apps/bench_cases.h"
#include "apps/commands.h"
#include "apps/interrupt.h"

namespace kdt::apps {
namespace {

struct BenchFlags {
  BenchOptions options;
  bool decode = false, profile = false;
};

void add_flags(CLI::App& app, BenchFlags* flags) {
  BenchOptions& o = flags->options;
  app.add_option("--model", o.model_dir,
                 "Checkpoint directory of the target; without one, ops run "
                 "on the shapes of tiny-k2 and of a Kimi K2.6 shard");
  app.add_option("--draft", o.draft_dir, "Checkpoint directory of its DFlash drafter");
  app.add_option("--op", o.ops, "Only this op; repeat for more")
      ->check(CLI::IsMember(bench_op_names()))
      ->allow_extra_args(false);
  app.add_option("--min-time", o.min_time, "Seconds of measuring per op and shape")
      ->check(CLI::Range(0.0, 60.0))
      ->capture_default_str();
  app.add_option("--csv", o.csv, "Write the table to this file too");
  add_threads_flag(app, &o.threads);

  auto* decode =
      app.add_flag("--decode", flags->decode, "Compare plain, chain and tree decoding on a prompt");
  auto* profile = app.add_flag("--profile", flags->profile,
                               "Show where the time of a decode round goes, op by op");
  decode->excludes(profile);
  add_prompt_flags(app, &o.prompts)->require_option(0, 1);
  app.add_option("--max-tokens", o.max_tokens, "Tokens to generate at most")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--budgets", o.budgets, "Tree budgets of --decode")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(CLI::Range(1, kMaxBudget))
      ->capture_default_str();
  app.add_option("--budget", o.budget, "Tree budget of --profile; 0: plain decoding")
      ->check(CLI::Range(0, kMaxBudget))
      ->capture_default_str();
  app.add_option("--repeats", o.repeats, "Runs of --decode and --profile")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.footer(
      "Examples:\n"
      "  kdtree bench                                  every op, against this machine's roof\n"
      "  kdtree bench --op linear --op moe_experts --csv ops.csv\n"
      "  kdtree bench --decode --model models/tiny-k2 --draft models/tiny-k2-dflash \\\n"
      "      --prompt 'def main():'                    speed and acceptance length by budget\n"
      "  kdtree bench --profile --model models/tiny-k2 --draft models/tiny-k2-dflash \\\n"
      "      --budget 32 --prompt 'def main():'        where a round's time goes\n");
}

int run_bench(const BenchFlags& flags) {
  const BenchOptions& o = flags.options;
  set_cpu_threads(o.threads);
  if (!flags.decode && !flags.profile) {
    if (o.prompts.any()) throw UsageError("a prompt needs --decode or --profile");
    return bench_ops(o);
  }
  const char* mode = flags.decode ? "--decode" : "--profile";
  if (o.model_dir.empty()) throw UsageError(fmt::format("{} needs --model DIR", mode));
  if (!o.prompts.any())
    throw UsageError(fmt::format("{} needs a prompt: --prompt TEXT, for example", mode));
  return flags.decode ? bench_decode(o) : bench_profile(o);
}

}  // namespace

int cpu_threads(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
}

Command add_bench(CLI::App& app) {
  const auto flags = std::make_shared<BenchFlags>();
  CLI::App* command =
      app.add_subcommand("bench", "Measure ops, decoding modes, or the parts of a decode round");
  add_flags(*command, flags.get());
  return [flags] { return run_bench(*flags); };
}

}  // namespace kdt::apps
