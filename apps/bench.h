// The measurements of `kdtree bench`.
#pragma once

#include <string>
#include <vector>

#include "apps/prompts.h"

namespace kdt::apps {

struct BenchOptions {
  std::string backend = "cpu";
  std::string model_dir, draft_dir;
  std::vector<std::string> ops;  // --op; empty: all
  double min_time = 0.1;         // seconds per case
  int threads = 0;               // 0: all cores
  std::string csv;               // path, or empty
  std::string csv_dir;           // of the CUDA backend's tables, or empty
  PromptOptions prompts;
  int max_tokens = 256;
  std::vector<int> budgets{8, 15, 32, 64};
  int budget = 32;
  int repeats = 3;
};

int bench_ops(const BenchOptions& options);      // one line per op and shape
int bench_cuda(const BenchOptions& options);     // one table per op, on the GPU
int bench_decode(const BenchOptions& options);   // plain, chain and trees on the same prompts
int bench_profile(const BenchOptions& options);  // where the time of a round goes

// Threads that the CPU backend uses for --threads N.
int cpu_threads(int asked);

}  // namespace kdt::apps
