// Prompts through the engine, for the measurements of whole rounds.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "apps/bench.h"
#include "engine/engine.h"

namespace kdt::apps {

// What a decoding mode did with all prompts, one after another.
struct Outcome {
  std::vector<Ids> tokens;  // per prompt
  int64_t n_tokens = 0;     // without each prompt's first, which its prefill gives
  int64_t n_rounds = 0;
  int64_t accepted = 0;  // over all rounds, roots counted
  double seconds = 0.0;  // decode only

  double acceptance() const { return n_rounds ? static_cast<double>(accepted) / n_rounds : 0.0; }
};

std::vector<Ids> bench_prompts(const BenchOptions& o);

// One request at a time, greedy.
std::unique_ptr<engine::Engine> bench_engine(const Backend& backend, const BenchOptions& o,
                                             const std::vector<Ids>& prompts, int max_budget);

// Runs a prompt to its end and adds to the outcome. Throws Interrupted after Ctrl-C.
void run_prompt(engine::Engine& engine, const Ids& prompt, engine::DecodeMode mode, int budget,
                int max_tokens, Outcome* outcome);

// Models and prompts, for the header of a CSV file.
std::string bench_subject(const BenchOptions& o, size_t n_prompts);

}  // namespace kdt::apps
