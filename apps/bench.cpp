#include "apps/bench.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <thread>

#include "apps/bench_cases.h"
#include "apps/commands.h"
#include "apps/gpu_bench.h"
#include "base/atomic_file.h"

namespace kdt::apps {
namespace {

struct BenchFlags {
  BenchOptions options;
  bool decode = false, profile = false;
};

void add_flags(CLI::App& app, BenchFlags* flags) {
  BenchOptions& o = flags->options;
  app.add_flag("--decode", flags->decode, "Compare plain, chain and tree decoding on a prompt");
  app.add_flag("--profile", flags->profile, "Show where the time of a decode round goes, op by op");
  app.add_option(
         "--model", o.model_dir,
         "Checkpoint directory of the target; for ops its shapes are taken")
      ->type_name("DIR")
      ->check(not_empty());
  app.add_option("--draft", o.draft_dir, "Checkpoint directory of its DFlash drafter")
      ->type_name("DIR")
      ->check(not_empty());
  app.add_option("--csv", o.csv, "Write the table to this file too")
      ->type_name("FILE")
      ->check(not_empty());
  add_threads_flag(app, &o.threads);

  app.add_option("--backend", o.backend, "Whose ops: cpu, or the kernels of a GPU, cuda")
      ->type_name("NAME")
      ->check(CLI::IsMember({"cpu", "cuda"}).description(""))
      ->capture_default_str()
      ->group("Ops");
  app.add_option("--csv-dir", o.csv_dir, "Of --backend cuda: write one CSV file per table here")
      ->type_name("DIR")
      ->check(not_empty())
      ->group("Ops");
  app.add_option("--op", o.ops, "Only this op; repeat for more (a wrong NAME lists all)")
      ->type_name("NAME")
      ->expected(1)
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->group("Ops");
  app.add_option("--min-time", o.min_time, "Seconds of measuring per op and shape")
      ->type_name("S")
      ->check(in_range(0.0, 60.0))
      ->capture_default_str()
      ->group("Ops");

  add_prompt_flags(app, &o.prompts);
  const auto add_number = [&](const char* name, auto& value, const char* help, int least,
                              int most) {
    return app.add_option(name, value, help)
        ->type_name("N")
        ->check(in_range(least, most))
        ->capture_default_str()
        ->group("Decoding");
  };
  constexpr int kMax = std::numeric_limits<int>::max();
  add_number("--max-tokens", o.max_tokens, "Tokens to generate at most", 1, kMax);
  add_number("--budgets", o.budgets, "Tree budgets of --decode", 1, kMaxBudget)
      ->option_text("N,N,...=8,15,32,64")
      ->delimiter(',');
  add_number("--budget", o.budget, "Tree budget of --profile; 0: plain decoding", 0, kMaxBudget);
  add_number("--repeats", o.repeats, "Runs of --decode and --profile", 1, 1000);
  app.footer(
      "Examples:\n"
      "  kdtree bench                                  every op, against this machine's roof\n"
      "  kdtree bench --op linear --op moe_experts --csv ops.csv\n"
      "  kdtree bench --backend cuda --op verify_attention --csv-dir results   on the GPU\n"
      "  kdtree bench --decode --model models/tiny-k2 --draft models/tiny-k2-dflash \\\n"
      "      --prompt 'def main():'                    speed and acceptance length by budget\n"
      "  kdtree bench --profile --model models/tiny-k2 --draft models/tiny-k2-dflash \\\n"
      "      --budget 32 --prompt 'def main():'        where a round's time goes\n");
}

// Refuses the flags that this measurement would ignore.
void check_flags(const CLI::App& app, const BenchFlags& flags) {
  const auto refuse = [&app](std::initializer_list<const char*> names, const char* why) {
    for (const char* name : names)
      if (app.count(name) > 0) throw UsageError(fmt::format("{} {}", name, why));
  };
  const BenchOptions& o = flags.options;
  if (flags.decode && flags.profile) throw UsageError("--decode and --profile exclude each other");
  if (!flags.profile) refuse({"--budget"}, "is for --profile; --decode takes --budgets");
  if (!flags.decode) refuse({"--budgets"}, "is for --decode; --profile takes --budget");
  if (flags.decode || flags.profile) {
    if (o.backend == "cuda")
      throw UsageError("--backend cuda measures ops; --decode and --profile run on the CPU");
    refuse({"--op", "--min-time", "--csv-dir"}, "is for ops, without --decode and --profile");
    if (o.draft_dir.empty() && o.budget > 0)  // budget 0 is plain decoding
      refuse({"--budgets", "--budget"}, "needs a drafter: add --draft DIR");
    return;
  }
  refuse({"--max-tokens", "--repeats"}, "is for --decode or --profile");
  if (o.prompts.any()) throw UsageError("a prompt is for --decode or --profile");
  if (o.backend == "cuda") {
    refuse({"--csv"}, "is for the CPU; --backend cuda writes its files to --csv-dir");
    refuse({"--model", "--draft", "--min-time"}, "is for the CPU, not for --backend cuda");
  } else {
    refuse({"--csv-dir"}, "is for --backend cuda");
    if (o.model_dir.empty()) refuse({"--draft"}, "needs --model DIR");
  }
}

int run_op_bench(const BenchOptions& o) {
  const bool cuda = o.backend == "cuda";
  const std::vector<std::string> known = cuda ? gpu_bench_names() : bench_op_names();
  for (const std::string& op : o.ops)
    if (std::find(known.begin(), known.end(), op) == known.end())
      throw UsageError(
          fmt::format("--op {}: --backend {} measures {}", op, o.backend, fmt::join(known, ", ")));
  return cuda ? bench_cuda(o) : bench_ops(o);
}

int run_bench(const CLI::App& app, const BenchFlags& flags) {
  const BenchOptions& o = flags.options;
  check_flags(app, flags);
  set_cpu_threads(o.threads);
  if (!o.csv.empty()) const AtomicFile probe(o.csv);  // throws before hours of measuring
  if (!flags.decode && !flags.profile) return run_op_bench(o);
  if (o.model_dir.empty())
    throw UsageError(fmt::format("{} needs --model DIR", flags.decode ? "--decode" : "--profile"));
  check_prompts(o.prompts);
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
  return [command, flags] { return run_bench(*command, *flags); };
}

}  // namespace kdt::apps
