#include "engine/executor.h"

#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"

namespace kdt::engine {
namespace {

std::vector<int64_t> capture_layers(const EngineOptions& options) {
  if (options.draft_dir.empty()) return {};
  return draft::DraftModel::capture_layers(options.draft_dir, options.model_dir);
}

}  // namespace

Executor::Executor(const Backend& backend, const EngineOptions& options)
    : backend_(backend),
      options_(options),
      target_(backend, options.model_dir, capture_layers(options), options.progress) {
  if (!options.draft_dir.empty())
    draft_.emplace(backend, options.draft_dir, target_, options.draft_conventions,
                   options.progress);
  const int64_t model_context = target_.config().max_position_embeddings;
  if (options.context_len < 0 || options.context_len > model_context)
    throw_error(ErrorCode::kInvalidArgument, "context length {}: the model has {} positions",
                options.context_len, model_context);
  vocab_ = static_cast<int32_t>(target_.config().vocab_size);
  context_len_ = static_cast<int32_t>(options.context_len ? options.context_len : model_context);
  max_blocks_ = ceil_div(context_len_, kPageTokens);
  plan();
}

void Executor::plan() {
  const int32_t batch = options_.max_batch, depth = draft_depth();
  const int32_t max_budget = std::max(options_.max_budget, depth);  // a chain may be the longer
  const int32_t tree_rows = batch * (max_budget + 1);
  const int32_t max_rows = std::max(options_.prefill_chunk, tree_rows);
  const int32_t all_pages = batch * max_blocks_;
  const int32_t n_pages = options_.kv_pages ? std::min(options_.kv_pages, all_pages) : all_pages;
  n_words_ = ceil_div(max_budget + 1, 64);
  max_accepted_ = depth + 1;

  target_.plan({.max_rows = max_rows,
                .max_logit_rows = tree_rows,
                .max_requests = batch,
                .max_nodes = n_words_ * 64});
  cache_ = target_.make_cache(n_pages);
  const auto ints = [&](size_t count) { return Mirror<int32_t>(backend_, count); };
  for (Mirror<int32_t>* per_request :
       {&row_offset_, &n_nodes_, &prefix_len_, &budget_, &max_depth_, &max_rank_, &root_,
        &n_accepted_, &bonus_, &status_, &draft_status_, &feature_offset_})
    *per_request = ints(batch);
  block_table_ = ints(static_cast<size_t>(batch) * max_blocks_);
  accepted_ = ints(static_cast<size_t>(batch) * max_accepted_);
  sampling_ = Mirror<SamplingParams>(backend_, batch);
  for (Mirror<int32_t>* per_row :
       {&tokens_, &positions_, &parents_, &depths_, &first_child_, &next_sibling_})
    *per_row = ints(max_rows);
  scores_ = Mirror<double>(backend_, max_rows);
  ancestors_ = Buffer<uint64_t>(backend_, static_cast<size_t>(max_rows) * n_words_);

  const int32_t max_k = std::clamp(options_.max_budget, 1, vocab_);
  const size_t candidates = static_cast<size_t>(batch) * std::max(depth, 1) * max_k;
  logp_ = Buffer<float>(backend_, candidates);
  ids_ = Buffer<int32_t>(backend_, candidates);
  size_t bytes = tree_accept_workspace(
      backend_,
      {.batch = batch, .n_rows = tree_rows, .vocab = vocab_, .max_accepted = max_accepted_});
  bytes = std::max(bytes, tree_build_workspace(backend_, {.batch = batch,
                                                          .depth = depth,
                                                          .k = max_k,
                                                          .n_words = n_words_,
                                                          .max_budget = max_budget}));
  if (draft_) {
    const int32_t context_rows = std::max(options_.prefill_chunk, batch * max_accepted_);
    draft_->plan(context_rows, batch);
    context_ = draft_->make_cache(n_pages);
    features_ =
        Buffer<float>(backend_, static_cast<size_t>(context_rows) * draft_->feature_width());
    context_positions_ = ints(context_rows);
    block_tokens_ = ints(static_cast<size_t>(batch) * (depth + 1));
    block_positions_ = ints(static_cast<size_t>(batch) * (depth + 1));
    bytes = std::max(
        bytes, draft_topk_workspace(backend_,
                                    {.batch = batch, .depth = depth, .vocab = vocab_, .k = max_k}));
  }
  workspace_ = Buffer<uint8_t>(backend_, bytes);
}

void Executor::set_request(int32_t b, const Sequence& sequence, int32_t row_offset,
                           int32_t n_nodes) {
  row_offset_[b] = row_offset;
  n_nodes_[b] = n_nodes;
  prefix_len_[b] = sequence.n_cached;
  std::copy(sequence.pages.begin(), sequence.pages.end(),
            block_table_.host() + static_cast<size_t>(b) * max_blocks_);
}

RowBatch Executor::upload_rows(int32_t n_requests, int32_t n_rows) {
  row_offset_.upload(n_requests);
  n_nodes_.upload(n_requests);
  prefix_len_.upload(n_requests);
  block_table_.upload(static_cast<size_t>(n_requests) * max_blocks_);
  return {.n_requests = n_requests,
          .n_rows = n_rows,
          .row_offset = row_offset_.device(),
          .n_nodes = n_nodes_.device(),
          .prefix_len = prefix_len_.device(),
          .block_table = block_table_.device(),
          .max_blocks = max_blocks_};
}

std::vector<StepResult> Executor::prefill(std::span<Sequence* const> sequences,
                                          std::span<const int32_t> counts) {
  const int32_t n_requests = static_cast<int32_t>(sequences.size());
  int32_t n_rows = 0;
  for (int32_t b = 0; b < n_requests; ++b) {
    const Sequence& s = *sequences[b];
    set_request(b, s, n_rows, counts[b]);
    for (int32_t i = 0; i < counts[b]; ++i) {
      tokens_[n_rows + i] = s.request.prompt[s.n_cached + i];
      positions_[n_rows + i] = s.n_cached + i;
    }
    n_accepted_[b] = counts[b];
    n_rows += counts[b];
  }
  const RowBatch rows = upload_rows(n_requests, n_rows);
  tokens_.upload(n_rows);
  positions_.upload(n_rows);
  target_.forward({.rows = rows, .tokens = tokens_.device(), .positions = positions_.device()},
                  cache_);

  // The last prompt token of each finished prompt is a tree of one node.
  std::vector<Sequence*> finished;
  for (int32_t b = 0; b < n_requests; ++b) {
    Sequence& s = *sequences[b];
    if (s.n_cached + counts[b] < s.prompt_len()) continue;
    target_.compute_logits(row_offset_[b] + counts[b] - 1, 1,
                           static_cast<int32_t>(finished.size()));
    finished.push_back(&s);
  }
  commit(sequences, rows, nullptr);
  for (int32_t b = 0; b < n_requests; ++b) sequences[b]->n_cached += counts[b];

  const int32_t n_finished = static_cast<int32_t>(finished.size());
  for (int32_t i = 0; i < n_finished; ++i) {
    row_offset_[i] = i;
    n_nodes_[i] = 1;
    positions_[i] = finished[i]->n_cached - 1;
    first_child_[i] = next_sibling_[i] = -1;
  }
  row_offset_.upload(n_finished);
  n_nodes_.upload(n_finished);
  positions_.upload(n_finished);
  first_child_.upload(n_finished);
  next_sibling_.upload(n_finished);
  accept(finished, n_finished);

  std::vector<StepResult> results(n_requests);
  for (int32_t b = 0, i = 0; b < n_requests; ++b) {
    if (sequences[b]->in_prefill()) continue;
    if (status_[i]) {
      results[b].error = "the model's logits are not finite numbers";
    } else {
      sequences[b]->pending = bonus_[i];
      results[b].tokens = {bonus_[i]};
    }
    ++i;
  }
  return results;
}

void Executor::accept(std::span<Sequence* const> sequences, int32_t n_rows) {
  const int32_t n_requests = static_cast<int32_t>(sequences.size());
  if (n_requests == 0) return;
  for (int32_t b = 0; b < n_requests; ++b) sampling_[b] = sequences[b]->request.sampling;
  sampling_.upload(n_requests);
  tree_accept(backend_, {.logits = target_.logits(),
                         .tokens = tokens_.device(),
                         .positions = positions_.device(),
                         .first_child = first_child_.device(),
                         .next_sibling = next_sibling_.device(),
                         .row_offset = row_offset_.device(),
                         .n_nodes = n_nodes_.device(),
                         .sampling = sampling_.device(),
                         .batch = n_requests,
                         .n_rows = n_rows,
                         .vocab = vocab_,
                         .max_accepted = max_accepted_,
                         .accepted = accepted_.device(),
                         .n_accepted = n_accepted_.device(),
                         .bonus = bonus_.device(),
                         .status = status_.device(),
                         .workspace = {workspace_.data(), workspace_.size()}});
  accepted_.download(static_cast<size_t>(n_requests) * max_accepted_);
  n_accepted_.download(n_requests);
  bonus_.download(n_requests);
  status_.download(n_requests);
}

// Stores n_accepted_[b] rows of each sequence in the caches: `accepted` node ids in backend memory,
// or the first rows if null.
void Executor::commit(std::span<Sequence* const> sequences, const RowBatch& rows,
                      const int32_t* accepted) {
  const auto& c = target_.config();
  const int32_t n_requests = static_cast<int32_t>(sequences.size());
  n_accepted_.upload(n_requests);
  KvCommitParams commit{
      .rows = rows,
      .tail = target_.tail(),
      .pages = cache_.pages.data(),
      .accepted = accepted,
      .n_accepted = n_accepted_.device(),
      .max_accepted = accepted ? max_accepted_ : rows.n_rows,
      .n_layers = static_cast<int32_t>(c.n_layers),
      .n_pages = cache_.n_pages,
      .width = target_.kv_width(),
      .tail_layer_stride = static_cast<int64_t>(target_.max_rows()) * target_.kv_width()};
  // Features of all, side by side; only the speculative ones, which stand first, are read.
  int32_t n_speculative = 0, n_context = 0, n_features = 0;
  for (int32_t b = 0; draft_ && b < n_requests; ++b) {
    feature_offset_[b] = n_features;
    for (int32_t i = 0; i < n_accepted_[b]; ++i)
      context_positions_[n_features + i] = sequences[b]->n_cached + i;
    n_features += n_accepted_[b];
    if (!sequences[b]->speculative()) continue;
    KDT_CHECK_EQ(n_speculative, b);
    ++n_speculative;
    n_context = n_features;
  }
  if (n_context > 0) {
    feature_offset_.upload(n_requests);
    context_positions_.upload(n_context);
    commit.features = target_.features();
    commit.features_out = features_.data();
    commit.feature_offset = feature_offset_.device();
    commit.n_features = static_cast<int32_t>(draft_->config().target_layer_ids.size());
    commit.hidden = static_cast<int32_t>(c.hidden_size);
    commit.feature_stride = static_cast<int64_t>(target_.max_rows()) * c.hidden_size;
  }
  kv_commit(backend_, commit);
  if (n_context == 0) return;

  RowBatch context = rows;
  context.n_requests = n_speculative;
  context.n_rows = n_context;
  context.row_offset = feature_offset_.device();
  context.n_nodes = n_accepted_.device();
  draft_->extend_context(features_.data(), context_positions_.device(), context, &context_);
}

}  // namespace kdt::engine
