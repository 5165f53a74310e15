// What `kdtree bench` measures: one list of cases, on any backend.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "apps/bench_cost.h"
#include "checkpoint/config.h"

namespace kdt::apps {

// A case with its data in place. `run` enqueues the op once.
struct PreparedCase {
  std::function<void()> run;
  std::function<OpCost()> cost;  // ask after run
  std::function<bool()> sound;   // the outputs of the last run are what numbers should be
};

struct BenchCase {
  std::string op;     // its name in the backend table
  std::string shape;  // what the op is for, and its sizes
  std::function<PreparedCase(const Backend&)> prepare;
};

// The sizes that cases are made of.
struct BenchModel {
  std::string name;
  checkpoint::TargetConfig target;
  checkpoint::DraftConfig draft;
};

BenchModel tiny_bench_model();  // models/tiny-k2 and its drafter
// One of eight shards of Kimi K2.6 and its drafter, with a few of the shard's experts: what fits
// into an ordinary machine's memory.
BenchModel k26_shard_bench_model();

// Every op of the table, in its order, for a decode round of `model`.
std::vector<BenchCase> bench_cases(const BenchModel& model);

// The ops' names, for --op.
std::vector<std::string> bench_op_names();

}  // namespace kdt::apps
