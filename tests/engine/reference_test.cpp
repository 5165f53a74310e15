// The engine against the independent implementation of models/tiny-k2: tokens, logits, acceptance
// lengths and trees (tests/golden/tiny_k2_reference.json).
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "tests/engine/target_logits.h"
#include "tests/engine/tiny_pair.h"

namespace kdt {
namespace {

using test::generate;
using test::Output;
using test::reference;
using test::tiny_options;

engine::Engine& tiny_engine() {
  static engine::Engine engine(cpu_backend(), tiny_options());
  return engine;
}

// The run of prompt `i`, made once.
const Output& run(size_t i, int budget) {
  static std::map<std::pair<size_t, int>, Output> runs;
  auto [it, is_new] = runs.try_emplace({i, budget});
  if (is_new) {
    engine::Request request = test::with_budget(test::prompt(i, 96), budget);
    request.want_trees = budget == 15;
    it->second = generate(tiny_engine(), request);
  }
  return it->second;
}

TEST(Reference, GreedyTokensInEveryMode) {
  for (size_t i = 0; i < reference().size(); ++i)
    for (const int budget : {0, -1, 15, 32, 64})
      EXPECT_EQ(run(i, budget).tokens, reference()[i]["greedy_ids"].get<std::vector<int32_t>>())
          << "prompt " << i << " budget " << budget;
}

// Acceptance lengths by the position at which their round starts.
std::map<int, int> rounds_by_position(const std::vector<int32_t>& lengths) {
  std::map<int, int> rounds;
  int position = 0;
  for (const int length : lengths) {
    rounds[position] = length;
    position += length;
  }
  return rounds;
}

TEST(Reference, AcceptanceLengths) {
  for (const auto& [key, budget] :
       std::map<std::string, int>{{"0", -1}, {"15", 15}, {"32", 32}, {"64", 64}}) {
    int n_rounds = 0, n_equal = 0, n_ours = 0, sum = 0, sum_ours = 0;
    for (size_t i = 0; i < reference().size(); ++i) {
      const auto want = reference()[i]["acceptance"][key].get<std::vector<int32_t>>();
      const Output& output = run(i, budget);
      const std::map<int, int> ours = rounds_by_position(output.acceptance);
      for (const auto& [position, length] : rounds_by_position(want)) {
        const auto it = ours.find(position);
        n_equal += it != ours.end() && it->second == length;
        ++n_rounds;
        sum += length;
      }
      n_ours += static_cast<int>(output.acceptance.size());
      for (const int length : output.acceptance) sum_ours += length;
    }
    const double mean = static_cast<double>(sum) / n_rounds;
    const double mean_ours = static_cast<double>(sum_ours) / n_ours;
    std::printf("acceptance[%s]: %d of %d rounds equal, mean %.4f, reference %.4f\n", key.c_str(),
                n_equal, n_rounds, mean_ours, mean);
    EXPECT_GE(n_equal, 0.99 * n_rounds) << key;
    EXPECT_NEAR(mean_ours, mean, 0.005 * mean) << key;
  }
}

TEST(Reference, FirstThreeTrees) {
  for (size_t i = 0; i < reference().size(); ++i) {
    const auto& trees = reference()[i]["trees_budget15"];
    for (size_t round = 0; round < trees.size(); ++round) {
      ASSERT_LT(round, run(i, 15).trees.size());
      const auto& want = trees[round];
      const auto& [tree, accepted] = run(i, 15).trees[round];
      const auto tail = [](const std::vector<int32_t>& all) {
        return std::vector<int32_t>(all.begin() + 1, all.end());
      };
      EXPECT_EQ(tail(tree.tokens), want["tree"]["node_token_ids"].get<std::vector<int32_t>>());
      EXPECT_EQ(tail(tree.depths), want["tree"]["node_depths"].get<std::vector<int32_t>>());
      EXPECT_EQ(tree.parents, want["tree"]["parents"].get<std::vector<int32_t>>());
      EXPECT_EQ(accepted, want["accepted_indices"].get<std::vector<int32_t>>());
    }
  }
}

TEST(Reference, LastPositionLogits) {
  model::TargetModel target(cpu_backend(), test::source_path("models/tiny-k2"), {}, {});
  double worst = 0.0;
  for (const auto& entry : reference()) {
    const auto tokens = entry["prompt_ids"].get<std::vector<int32_t>>();
    const std::vector<float> logits = test::prompt_logits(target, tokens);
    const float* last = logits.data() + logits.size() - target.config().vocab_size;
    for (size_t i = 0; i < entry["last_top8_ids"].size(); ++i) {
      const float logit = last[entry["last_top8_ids"][i].get<int32_t>()];
      const double error = std::fabs(logit - entry["last_top8_logits"][i].get<double>());
      EXPECT_LE(error, 1e-3) << entry["prompt"];
      worst = std::max(worst, error);
    }
  }
  std::printf("largest logit error %.2e\n", worst);
}

}  // namespace
}  // namespace kdt
