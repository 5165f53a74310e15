// gpu_bench: writes the kernel benches' CSV files.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <map>

#include "apps/gpu_bench.h"
#include "base/error.h"

int main(int argc, char** argv) {
  using namespace kdt::apps;
  const std::map<std::string, void (*)(const kdt::Backend&, const GpuBenchOptions&)> benches = {
      {"tree_build", bench_tree_build},
      {"tree_accept", bench_tree_accept},
      {"kv_commit", bench_kv_commit},
      {"lse_merge", bench_lse_merge},
      {"verify_attention", bench_verify_attention},
      {"verify_attention_variants", bench_verify_attention_variants},
  };
  CLI::App app("gpu_bench: kernel times on a GPU, one CSV file an op");
  GpuBenchOptions options;
  std::vector<std::string> ops;
  app.add_option("--out", options.out_dir, "Directory of the CSV files")->required();
  app.add_option("--note", options.note, "First line of the files: commit, date, GPU")->required();
  app.add_option("--op", ops, "Only this op; repeat for more")->check(CLI::IsMember(benches));
  CLI11_PARSE(app, argc, argv);
  try {
    const kdt::Backend* backend = kdt::cuda_backend();
    if (!backend)
      kdt::throw_error(kdt::ErrorCode::kUnsupported, "no CUDA in this build, or no GPU here");
    for (const auto& [op, bench] : benches)
      if (ops.empty() || std::find(ops.begin(), ops.end(), op) != ops.end())
        bench(*backend, options);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpu_bench: %s\n", error.what());
    return 1;
  }
  return 0;
}
