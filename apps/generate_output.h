// What `kdtree generate` says about its runs.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "text/tokenizer.h"

namespace kdt::apps {

// One prompt's run, filled as its events arrive.
struct Run {
  std::vector<int32_t> prompt_ids, token_ids;
  std::vector<int32_t> acceptance_lengths;  // one per round
  std::shared_ptr<engine::RoundTree> tree;  // the round that shows most
  engine::FinishReason reason = engine::FinishReason::kNone;
  std::string error;
  engine::RequestTiming timing;

  void add(const engine::Event& event);
  double tokens_per_s() const;  // decode only: the first token belongs to the prefill
  double mean_acceptance() const;
};

// The answer without the special tokens that frame it; empty without a tokenizer.
std::string answer_text(const Run& run, const text::Tokenizer* tokenizer);

// The objects of --json: one, or a list when there are several runs.
std::string to_json(const std::vector<Run>& runs, const text::Tokenizer* tokenizer, double load_s);

// "96 tokens in 34 rounds, acceptance length 2.85, 812 tokens/s".
std::string summary(const Run& run);

// The draft tree of one round, for a terminal: of those whose accepted path leaves the chain of
// best tokens, the longest; else the longest of all.
std::string draw_tree(const Run& run, const text::Tokenizer* tokenizer, bool color);

}  // namespace kdt::apps
