// One decode round (arXiv 2604.12989): draft -> tree -> verify -> accept -> commit.
#include <algorithm>

#include "base/error.h"
#include "engine/executor.h"

namespace kdt::engine {
namespace {

// Nodes asked for besides the root.
int32_t tree_budget(const Request& request, int32_t depth) {
  switch (request.mode) {
    case DecodeMode::kPlain:
      return 0;
    case DecodeMode::kChain:
      return depth;
    case DecodeMode::kTree:
      return request.budget;
  }
  return 0;
}

}  // namespace

std::vector<StepResult> Executor::round(std::span<Sequence* const> sequences) {
  const int32_t n_requests = static_cast<int32_t>(sequences.size());
  const auto n_speculative = static_cast<int32_t>(std::count_if(
      sequences.begin(), sequences.end(), [](const Sequence* s) { return s->speculative(); }));
  if (n_speculative > 0) draft(sequences.first(n_speculative));
  const int32_t n_rows = build_trees(sequences, n_speculative);

  for (int32_t b = 0; b < n_requests; ++b)
    set_request(b, *sequences[b], row_offset_[b], n_nodes_[b]);
  const RowBatch rows = upload_rows(n_requests, n_rows);
  target_.forward({.rows = rows,
                   .tokens = tokens_.device(),
                   .positions = positions_.device(),
                   .ancestors = ancestors_.data(),
                   .n_words = n_words_},
                  cache_);
  target_.compute_logits(0, n_rows, 0);
  accept(sequences, n_rows);

  for (int32_t b = 0; b < n_requests; ++b) {
    if (b < n_speculative && draft_status_[b]) status_[b] = draft_status_[b];
    if (status_[b]) n_accepted_[b] = 0;
  }
  commit(sequences, rows, accepted_.device());

  std::vector<StepResult> results(n_requests);
  for (int32_t b = 0; b < n_requests; ++b) {
    Sequence& s = *sequences[b];
    StepResult& result = results[b];
    if (status_[b]) {
      result.error = b < n_speculative && draft_status_[b]
                         ? "the drafter's logits are not finite numbers"
                         : "the model's logits are not finite numbers";
      continue;
    }
    const int32_t* path = accepted_.host() + static_cast<size_t>(b) * max_accepted_;
    for (int32_t i = 1; i < n_accepted_[b]; ++i)
      result.tokens.push_back(tokens_[row_offset_[b] + path[i]]);
    result.tokens.push_back(bonus_[b]);
    result.acceptance_length = n_accepted_[b];
    if (s.request.want_trees) result.round_tree = snapshot(b);
    s.n_cached += n_accepted_[b];
    s.pending = bonus_[b];
  }
  return results;
}

// Draft logits of the sequences -> the best candidates per depth, logp_ and ids_ [S, L, K].
void Executor::draft(std::span<Sequence* const> speculative) {
  const int32_t n_requests = static_cast<int32_t>(speculative.size());
  const int32_t depth = draft_depth(), block = depth + 1;
  for (int32_t b = 0; b < n_requests; ++b) {
    const Sequence& s = *speculative[b];
    set_request(b, s, b * block, block);
    for (int32_t i = 0; i < block; ++i) {
      block_tokens_[b * block + i] = i == 0 ? s.pending : draft_->config().mask_token_id;
      block_positions_[b * block + i] = s.n_cached + i;
    }
  }
  block_tokens_.upload(static_cast<size_t>(n_requests) * block);
  block_positions_.upload(static_cast<size_t>(n_requests) * block);
  const float* logits = draft_->draft(block_tokens_.device(), block_positions_.device(),
                                      upload_rows(n_requests, n_requests * block), context_);

  candidates_ = 1;  // a chain needs no more
  for (const Sequence* s : speculative)
    if (s->request.mode == DecodeMode::kTree)
      candidates_ = std::max(candidates_, s->request.budget);
  candidates_ = std::min(candidates_, vocab_);
  draft_topk(backend_, {.logits = logits,
                        .row_stride = vocab_,
                        .batch = n_requests,
                        .depth = depth,
                        .vocab = vocab_,
                        .k = candidates_,
                        .logp = logp_.data(),
                        .ids = ids_.data(),
                        .status = draft_status_.device(),
                        .workspace = {workspace_.data(), workspace_.size()}});
  draft_status_.download(n_requests);
}

// Lays out every request's rows and builds its tree; returns the number of rows.
int32_t Executor::build_trees(std::span<Sequence* const> sequences, int32_t n_speculative) {
  const int32_t n_requests = static_cast<int32_t>(sequences.size()), depth = draft_depth();
  int32_t n_rows = 0, max_budget = 0;
  for (int32_t b = 0; b < n_requests; ++b) {
    const Sequence& s = *sequences[b];
    const bool drafted = b < n_speculative && draft_status_[b] == 0;
    budget_[b] = drafted ? tree_budget(s.request, depth) : 0;
    max_depth_[b] = drafted ? std::min(depth, context_len_ - 1 - s.n_cached) : 0;
    max_rank_[b] = drafted && s.request.mode == DecodeMode::kTree ? candidates_ : 1;
    root_[b] = s.pending;
    prefix_len_[b] = s.n_cached;
    row_offset_[b] = n_rows;
    n_rows += budget_[b] + 1;
    max_budget = std::max(max_budget, budget_[b]);
  }
  for (Mirror<int32_t>* input :
       {&budget_, &max_depth_, &max_rank_, &root_, &prefix_len_, &row_offset_})
    input->upload(n_requests);
  tree_build(backend_, {.logp = logp_.data(),
                        .ids = ids_.data(),
                        .budget = budget_.device(),
                        .max_depth = max_depth_.device(),
                        .max_rank = max_rank_.device(),
                        .root_token = root_.device(),
                        .prefix_len = prefix_len_.device(),
                        .row_offset = row_offset_.device(),
                        .batch = n_requests,
                        .depth = depth,
                        .k = candidates_,
                        .n_words = n_words_,
                        .max_budget = max_budget,
                        .tokens = tokens_.device(),
                        .parents = parents_.device(),
                        .depths = depths_.device(),
                        .positions = positions_.device(),
                        .scores = scores_.device(),
                        .ancestors = ancestors_.data(),
                        .first_child = first_child_.device(),
                        .next_sibling = next_sibling_.device(),
                        .n_nodes = n_nodes_.device(),
                        .workspace = {workspace_.data(), workspace_.size()}});
  n_nodes_.download(n_requests);
  tokens_.download(n_rows);
  return n_rows;
}

std::shared_ptr<RoundTree> Executor::snapshot(int32_t b) {
  const size_t first = row_offset_[b], n = n_nodes_[b];
  for (Mirror<int32_t>* output : {&parents_, &depths_}) output->download(first + n);
  scores_.download(first + n);
  auto result = std::make_shared<RoundTree>();
  const auto copy = [&](const auto& from, auto* to) {
    to->resize(n);
    for (size_t i = 0; i < n; ++i) (*to)[i] = from[first + i];
  };
  copy(tokens_, &result->tree.tokens);
  copy(parents_, &result->tree.parents);
  copy(depths_, &result->tree.depths);
  copy(scores_, &result->tree.scores);
  const int32_t* path = accepted_.host() + static_cast<size_t>(b) * max_accepted_;
  result->accepted.assign(path, path + n_accepted_[b]);
  return result;
}

}  // namespace kdt::engine
