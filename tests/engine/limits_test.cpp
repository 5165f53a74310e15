// Where requests begin, cross and end: page borders, prompt chunks, stop tokens, one token; and the
// drafter's conventions, which reach it through the engine's options.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "tests/engine/target_logits.h"
#include "tests/engine/tiny_pair.h"
#include "tests/unit/checkpoint_files.h"

namespace kdt {
namespace {

using engine::Engine;
using engine::FinishReason;
using engine::Request;
using test::generate;
using test::Output;
using test::prompt;
using test::reference;
using test::TempDir;
using test::with_budget;

constexpr int kBudgets[] = {0, -1, 15, 64};

engine::EngineOptions options_up_to_64() {
  engine::EngineOptions options = test::tiny_options();
  options.max_budget = 64;
  return options;
}

Engine& tiny_engine() {
  static Engine engine(cpu_backend(), options_up_to_64());
  return engine;
}

// `length` tokens of text, from token `first` on.
std::vector<int32_t> text(size_t first, size_t length) {
  std::vector<int32_t> all;
  for (const auto& entry : reference())
    for (const char* part : {"prompt_ids", "greedy_ids"})
      for (const int32_t token : entry[part]) all.push_back(token);
  return {all.begin() + first, all.begin() + first + length};
}

// What greedy decoding must give, from one forward pass over prompt and output without any cache.
std::vector<int32_t> forced(const std::vector<int32_t>& prompt,
                            const std::vector<int32_t>& output) {
  static model::TargetModel target(cpu_backend(), test::source_path("models/tiny-k2"), {}, {});
  std::vector<int32_t> tokens = prompt;
  tokens.insert(tokens.end(), output.begin(), output.end() - 1);
  const std::vector<float> logits = test::prompt_logits(target, tokens);
  const int64_t vocab = target.config().vocab_size;
  std::vector<int32_t> want;
  for (size_t row = prompt.size() - 1; row < tokens.size(); ++row) {
    const auto first = logits.begin() + row * vocab;
    want.push_back(static_cast<int32_t>(std::max_element(first, first + vocab) - first));
  }
  return want;
}

// Prompts that end around page borders, some longer than a prefill chunk, decode side by side over
// whatever pages are free.
TEST(Limits, BatchesCrossPagesAndChunks) {
  std::vector<Request> requests;
  const size_t lengths[] = {1, 60, 63, 64, 65, 127, 129, 300};
  const int budgets[] = {15, -1, 0, 64, 7, -1, 15, 64};
  for (size_t i = 0; i < std::size(lengths); ++i) {
    Request request{.prompt = text(7 * i, lengths[i]), .max_tokens = 12};
    request.ignore_eos = true;
    requests.push_back(with_budget(request, budgets[i]));
  }
  std::vector<Output> alone;
  for (const Request& request : requests) {
    alone.push_back(generate(tiny_engine(), request));
    ASSERT_EQ(alone.back().tokens.size(), 12u);
    EXPECT_EQ(alone.back().tokens, forced(request.prompt, alone.back().tokens))
        << request.prompt.size() << " prompt tokens";
  }
  for (int wave = 0; wave < 2; ++wave) {  // the second finds the pages in another order
    std::vector<std::shared_ptr<engine::RequestStream>> streams;
    for (const Request& request : requests) streams.push_back(tiny_engine().submit(request));
    for (size_t i = 0; i < requests.size(); ++i) {
      const Output together = test::collect(*streams[i]);
      EXPECT_EQ(together.tokens, alone[i].tokens) << lengths[i] << " prompt tokens";
      EXPECT_EQ(together.acceptance, alone[i].acceptance) << lengths[i] << " prompt tokens";
    }
  }
}

TEST(Limits, OneToken) {
  for (size_t i = 0; i < reference().size(); ++i)
    for (const int budget : kBudgets) {
      const Output output = generate(tiny_engine(), with_budget(prompt(i, 1), budget));
      EXPECT_EQ(output.tokens, std::vector<int32_t>{reference()[i]["greedy_ids"][0]});
      EXPECT_EQ(output.reason, FinishReason::kLength);
      EXPECT_EQ(output.acceptance.size(), 1u) << "prompt " << i << " budget " << budget;
    }
}

// The files of a model directory, one of them replaced.
void link_model(const TempDir& dir, const std::string& model, const std::string& replaced,
                const std::string& content) {
  for (const auto& entry : std::filesystem::directory_iterator(test::source_path(model)))
    if (entry.path().filename() != replaced)
      std::filesystem::create_symlink(entry.path(),
                                      dir.path() + "/" + entry.path().filename().string());
  dir.write(replaced, content);
}

// A token that speculation accepted between a round's root and the round's last accepted node.
struct Inner {
  size_t index = 0;  // in the output
  size_t round = 0;
};

Inner first_new_inner_token(const Output& output) {
  std::set<int32_t> seen = {output.tokens.at(0)};
  size_t index = 1;
  for (size_t round = 0; round < output.trees.size(); ++round)
    for (int32_t i = 1; i <= output.acceptance[round] && index < output.tokens.size(); ++i, ++index)
      if (seen.insert(output.tokens[index]).second && i + 1 < output.acceptance[round])
        return {index, round};
  return {};
}

TEST(Limits, StopTokenInsideTheAcceptedPath) {
  Request request = with_budget(prompt(0, 60), 64);
  request.want_trees = true;
  const Output free_run = generate(tiny_engine(), request);
  ASSERT_EQ(free_run.reason, FinishReason::kLength);
  const Inner inner = first_new_inner_token(free_run);
  ASSERT_GT(inner.index, 0u);
  const int32_t stop = free_run.tokens[inner.index];
  const std::vector<int32_t> want(free_run.tokens.begin(),
                                  free_run.tokens.begin() + inner.index + 1);

  const TempDir dir;
  link_model(dir, "models/tiny-k2", "generation_config.json",
             nlohmann::json({{"eos_token_id", stop}}).dump());
  engine::EngineOptions options = options_up_to_64();
  options.model_dir = dir.path();
  Engine engine(cpu_backend(), options);
  for (const int budget : kBudgets) {
    const Output output = generate(engine, with_budget(prompt(0, 60), budget));
    EXPECT_EQ(output.tokens, want) << "budget " << budget;
    EXPECT_EQ(output.reason, FinishReason::kStop) << "budget " << budget;
    if (budget != 64) continue;
    const auto first = free_run.acceptance.begin();  // lengths are those before the cut
    EXPECT_EQ(output.acceptance, std::vector<int32_t>(first, first + inner.round + 1));
  }
  Request deaf = with_budget(prompt(0, 60), 64);
  deaf.ignore_eos = true;
  EXPECT_EQ(generate(engine, deaf).tokens, free_run.tokens);
}

// A chain may be longer than the largest tree: its memory is planned all the same.
TEST(Limits, AChainNeedsNoTreeBudget) {
  Backend backend = cpu_backend();  // one whose other ops lend the tree builder no memory
  backend.tree_accept_workspace = [](const TreeAcceptParams&) { return size_t{0}; };
  backend.tree_accept = [](const TreeAcceptParams& given, Stream stream) {
    std::vector<uint64_t> memory(cpu_backend().tree_accept_workspace(given) / sizeof(uint64_t));
    TreeAcceptParams p = given;
    p.workspace = {memory.data(), memory.size() * sizeof(uint64_t)};
    cpu_backend().tree_accept(p, stream);
  };
  engine::EngineOptions options = options_up_to_64();
  options.max_batch = 1;
  options.max_budget = 0;
  Engine engine(backend, options);
  const Output output = generate(engine, with_budget(prompt(4, 24), -1));
  EXPECT_EQ(output.error, "");
  EXPECT_EQ(output.tokens, generate(engine, prompt(4, 24)).tokens);
}

// Drafts with a drafter of another config.json; returns the rounds' trees, having checked that the
// output is the target's.
std::vector<std::vector<int32_t>> drafts(const nlohmann::json& changes,
                                         const draft::DraftConventions& conventions) {
  nlohmann::json config =
      nlohmann::json::parse(std::ifstream(test::source_path("models/tiny-k2-dflash/config.json")));
  config.update(changes);
  const TempDir dir;
  link_model(dir, "models/tiny-k2-dflash", "config.json", config.dump());
  engine::EngineOptions options = options_up_to_64();
  options.draft_dir = dir.path();
  options.draft_conventions = conventions;
  Engine engine(cpu_backend(), options);
  Request request = with_budget(prompt(4, 24), 15);
  request.want_trees = true;
  const Output output = generate(engine, request);
  auto want = reference()[4]["greedy_ids"].get<std::vector<int32_t>>();
  want.resize(24);
  EXPECT_EQ(output.tokens, want);
  std::vector<std::vector<int32_t>> trees;
  for (const engine::RoundTree& round : output.trees) trees.push_back(round.tree.tokens);
  return trees;
}

TEST(Limits, DraftConventionsReachTheDrafter) {
  using checkpoint::DraftAmplitude;
  const auto sliding = [](bool causal) {
    return drafts(
        {{"layer_types", std::vector<std::string>(3, "sliding_attention")}, {"sliding_window", 32}},
        {.causal_sliding_layers = causal});
  };
  EXPECT_NE(sliding(true), sliding(false));
  EXPECT_EQ(drafts(nlohmann::json::object(), {.causal_sliding_layers = true}),
            drafts(nlohmann::json::object(),
                   {.causal_sliding_layers = false}));  // no sliding layers, no difference

  const auto yarn = [](DraftAmplitude amplitude) {
    return drafts({{"rope_scaling",
                    {{"rope_type", "yarn"},
                     {"factor", 8.0},
                     {"original_max_position_embeddings", 512},
                     {"mscale", 1.0},
                     {"mscale_all_dim", 1.0}}}},
                  {.amplitude = amplitude});
  };
  EXPECT_NE(yarn(DraftAmplitude::kFullMscale), yarn(DraftAmplitude::kMscaleRatio));
  EXPECT_EQ(yarn(DraftAmplitude::kByRopeType), yarn(DraftAmplitude::kFullMscale));
}

}  // namespace
}  // namespace kdt
