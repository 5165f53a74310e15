// The trained pair of models/ and what an independent implementation says of it, for engine tests.
#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine.h"

namespace kdt::test {

inline std::string source_path(const std::string& relative) {
  return std::string(KDT_SOURCE_DIR) + "/" + relative;
}

inline engine::EngineOptions tiny_options() {
  return {.model_dir = source_path("models/tiny-k2"),
          .draft_dir = source_path("models/tiny-k2-dflash"),
          .max_batch = 8,
          .max_budget = 256,
          .context_len = 1024};
}

// The prompts with greedy tokens and acceptance lengths (tests/golden/README.md).
inline const nlohmann::json& reference() {
  static const nlohmann::json data =
      nlohmann::json::parse(std::ifstream(source_path("tests/golden/tiny_k2_reference.json")));
  return data;
}

// The greedy request of one of those prompts.
inline engine::Request prompt(size_t index, int32_t max_tokens) {
  return {.prompt = reference()[index]["prompt_ids"].get<std::vector<int32_t>>(),
          .max_tokens = max_tokens};
}

struct Output {
  std::vector<int32_t> tokens, acceptance;
  std::vector<engine::RoundTree> trees;
  engine::FinishReason reason = engine::FinishReason::kNone;
  std::string error;
};

inline Output collect(engine::RequestStream& stream) {
  Output output;
  engine::Event event;
  while (stream.next(&event)) {
    output.tokens.insert(output.tokens.end(), event.tokens.begin(), event.tokens.end());
    if (event.acceptance_length) output.acceptance.push_back(event.acceptance_length);
    if (event.round_tree) output.trees.push_back(*event.round_tree);
    output.reason = event.reason;
    output.error = event.error;
  }
  return output;
}

inline Output generate(engine::Engine& engine, engine::Request request) {
  return collect(*engine.submit(std::move(request)));
}

// Budget 0 is plain decoding, -1 the chain, anything else a tree.
inline engine::Request with_budget(engine::Request request, int budget) {
  request.mode = budget == 0  ? engine::DecodeMode::kPlain
                 : budget < 0 ? engine::DecodeMode::kChain
                              : engine::DecodeMode::kTree;
  request.budget = std::max(budget, 0);
  return request;
}

}  // namespace kdt::test
