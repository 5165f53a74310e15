#include "tests/ops/round_pipeline.h"

#include <algorithm>

namespace kdt::test {
namespace {

template <typename T>
std::vector<char> bytes_of(const std::vector<T>& values) {
  std::vector<char> bytes(values.size() * sizeof(T));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

}  // namespace

RoundPipeline::RoundPipeline(const Backend& backend, const TableModel& model,
                             const std::vector<RoundRequest>& requests)
    : backend_(backend), batch_(static_cast<int>(requests.size())) {
  std::vector<int32_t> budget, max_rank, max_len, feature_offset, prefix, root, depth;
  std::vector<SamplingParams> sampling;
  for (const RoundRequest& r : requests) {
    offsets_.push_back(n_rows_);
    n_rows_ += r.budget + 1;
    budget.push_back(r.budget);
    max_rank.push_back(kBudget);
    max_len.push_back(r.max_len);
    feature_offset.push_back(static_cast<int32_t>(feature_offset.size()) * max_accepted());
    prefix.push_back(r.prefix);
    root.push_back(r.root);
    depth.push_back(std::min(M::kDepth, r.max_len - 1 - r.prefix));
    sampling.push_back(r.sampling);
    max_blocks_ = std::max(max_blocks_, (r.max_len + kPageTokens - 1) / kPageTokens);
  }
  for (int i = 0; i < batch_ * max_blocks_; ++i)
    table_.push_back((i * 7 + 3) % (batch_ * max_blocks_ + 1));
  n_pages_ = batch_ * max_blocks_ + 1;
  EXPECT_NE(n_pages_ % 7, 0) << "pages would be shared";

  const auto in = [&](auto& array, const auto& values) {
    array = std::remove_reference_t<decltype(array)>(backend, values);
  };
  const auto out = [&](auto& array, size_t count) {
    array = poisoned<std::remove_pointer_t<decltype(array.data())>>(backend, count);
  };
  in(draft_table_, model.draft);
  in(target_table_, model.target);
  in(query_table_, model.queries);
  in(token_keys_, model.token_keys);
  in(position_keys_, model.position_keys);
  in(row_offset_, offsets_);
  in(budget_, budget);
  in(max_rank_, max_rank);
  in(max_len_, max_len);
  in(block_table_, table_);
  in(feature_offset_, feature_offset);
  in(prefix_len_, prefix);
  in(root_token_, root);
  in(max_depth_, depth);
  in(sampling_, sampling);
  for (auto* array : {&topk_status_, &n_nodes_, &n_accepted_, &bonus_, &status_})
    out(*array, batch_);
  out(accepted_, size_t(batch_) * max_accepted());
  for (auto* array :
       {&tokens_, &parents_, &depths_, &positions_, &first_child_, &next_sibling_, &targets_})
    out(*array, n_rows_);
  out(draft_logits_, size_t(batch_) * M::kDepth * M::kVocab);
  out(logp_, size_t(batch_) * M::kDepth * kBudget);
  out(ids_, size_t(batch_) * M::kDepth * kBudget);
  out(logits_, size_t(n_rows_) * M::kVocab);
  out(features_, size_t(batch_) * max_accepted() * M::kVocab);
  out(queries_, size_t(n_rows_) * M::kHeads * M::kWidth / 2);
  out(tail_, size_t(M::kLayers) * n_rows_ * M::kWidth / 2);
  out(scores_, n_rows_);
  out(ancestors_, size_t(n_rows_) * kWords);
  for (int layer = 0; layer < M::kLayers; ++layer) {
    out(out_[layer], size_t(n_rows_) * M::kHeads * M::kLatent);
    out(lse_[layer], size_t(n_rows_) * M::kHeads);
  }
  Random random(99);
  std::vector<uint16_t> pages(size_t(M::kLayers) * n_pages_ * kPageTokens * M::kWidth);
  for (uint16_t& x : pages) x = f32_to_bf16(4.0f * static_cast<float>(random.uniform()) - 2.0f);
  in(pages_, pages);
}

void RoundPipeline::lookup(Array<float>& table, int width, const int32_t* ids, int n, void* out,
                           Stream stream) {
  embedding(backend_,
            {.tokens = ids,
             .table = table.data(),
             .dtype = DType::kF32,
             .out = static_cast<float*>(out),
             .n_rows = n,
             .hidden = width,
             .vocab = static_cast<int32_t>(table.size() / width)},
            stream);
}

// One workspace for all ops. It grows in the first round, which is why that is not captured.
Workspace RoundPipeline::workspace(size_t bytes) {
  if (workspace_.size() < bytes) workspace_ = workspace_array(backend_, bytes);
  return {workspace_.data(), workspace_.size()};
}

RowBatch RoundPipeline::rows() {
  return {.n_requests = batch_,
          .n_rows = n_rows_,
          .row_offset = row_offset_.data(),
          .n_nodes = n_nodes_.data(),
          .prefix_len = prefix_len_.data(),
          .block_table = block_table_.data(),
          .max_blocks = max_blocks_};
}

void RoundPipeline::build_trees(Stream stream) {
  lookup(draft_table_, M::kDepth * M::kVocab, root_token_.data(), batch_, draft_logits_.data(),
         stream);
  DraftTopkParams topk = {.logits = draft_logits_.data(),
                          .row_stride = M::kVocab,
                          .batch = batch_,
                          .depth = M::kDepth,
                          .vocab = M::kVocab,
                          .k = kBudget,
                          .logp = logp_.data(),
                          .ids = ids_.data(),
                          .status = topk_status_.data()};
  topk.workspace = workspace(draft_topk_workspace(backend_, topk));
  draft_topk(backend_, topk, stream);
  TreeBuildParams build = {.logp = logp_.data(),
                           .ids = ids_.data(),
                           .budget = budget_.data(),
                           .max_depth = max_depth_.data(),
                           .max_rank = max_rank_.data(),
                           .root_token = root_token_.data(),
                           .prefix_len = prefix_len_.data(),
                           .row_offset = row_offset_.data(),
                           .batch = batch_,
                           .depth = M::kDepth,
                           .k = kBudget,
                           .n_words = kWords,
                           .max_budget = kBudget,
                           .tokens = tokens_.data(),
                           .parents = parents_.data(),
                           .depths = depths_.data(),
                           .positions = positions_.data(),
                           .scores = scores_.data(),
                           .ancestors = ancestors_.data(),
                           .first_child = first_child_.data(),
                           .next_sibling = next_sibling_.data(),
                           .n_nodes = n_nodes_.data()};
  build.workspace = workspace(tree_build_workspace(backend_, build));
  tree_build(backend_, build, stream);
}

void RoundPipeline::attend(Stream stream) {
  lookup(query_table_, M::kHeads * M::kWidth / 2, tokens_.data(), n_rows_, queries_.data(), stream);
  float* second_tail = tail_.data() + size_t(n_rows_) * M::kWidth / 2;
  lookup(token_keys_, M::kWidth / 2, tokens_.data(), n_rows_, tail_.data(), stream);
  lookup(position_keys_, M::kWidth / 2, positions_.data(), n_rows_, second_tail, stream);
  for (int layer = 0; layer < M::kLayers; ++layer) {
    VerifyAttentionParams p = {
        .rows = rows(),
        .q = queries_.data(),
        .kv_pages = pages_.data() + size_t(layer) * n_pages_ * kPageTokens * M::kWidth,
        .tail = layer == 0 ? tail_.data() : second_tail,
        .ancestors = ancestors_.data(),
        .out = out_[layer].data(),
        .lse = lse_[layer].data(),
        .n_words = kWords,
        .n_heads = M::kHeads,
        .n_pages = n_pages_,
        .scale = 0.05f,
        .q_dtype = DType::kBF16,
        .kv_dtype = DType::kBF16};
    p.workspace = workspace(verify_attention_workspace(backend_, p));
    if (layer == 0) verify_attention_plan(backend_, p, stream);
    verify_attention(backend_, p, stream);
  }
}

void RoundPipeline::accept_and_commit(Stream stream) {
  lookup(target_table_, M::kVocab, tokens_.data(), n_rows_, logits_.data(), stream);
  TreeAcceptParams accept = {.logits = logits_.data(),
                             .tokens = tokens_.data(),
                             .positions = positions_.data(),
                             .first_child = first_child_.data(),
                             .next_sibling = next_sibling_.data(),
                             .row_offset = row_offset_.data(),
                             .n_nodes = n_nodes_.data(),
                             .sampling = sampling_.data(),
                             .batch = batch_,
                             .n_rows = n_rows_,
                             .vocab = M::kVocab,
                             .max_accepted = max_accepted(),
                             .accepted = accepted_.data(),
                             .n_accepted = n_accepted_.data(),
                             .bonus = bonus_.data(),
                             .targets = targets_.data(),
                             .status = status_.data()};
  accept.workspace = workspace(tree_accept_workspace(backend_, accept));
  tree_accept(backend_, accept, stream);
  kv_commit(backend_,
            {.rows = rows(),
             .tail = tail_.data(),
             .pages = pages_.data(),
             .accepted = accepted_.data(),
             .n_accepted = n_accepted_.data(),
             .max_accepted = max_accepted(),
             .n_layers = M::kLayers,
             .n_pages = n_pages_,
             .width = M::kWidth,
             .tail_layer_stride = int64_t{n_rows_} * M::kWidth,
             .dtype = DType::kBF16,
             .features = logits_.data(),
             .features_out = features_.data(),
             .feature_offset = feature_offset_.data(),
             .n_features = 1,
             .hidden = M::kVocab},
            stream);
  next_round(backend_,
             {.n_accepted = n_accepted_.data(),
              .bonus = bonus_.data(),
              .max_len = max_len_.data(),
              .prefix_len = prefix_len_.data(),
              .root_token = root_token_.data(),
              .max_depth = max_depth_.data(),
              .batch = batch_,
              .depth = M::kDepth},
             stream);
}

void RoundPipeline::enqueue(Stream stream) {
  build_trees(stream);
  attend(stream);
  accept_and_commit(stream);
}

RoundState RoundPipeline::state() const {
  RoundState s = {.n_nodes = n_nodes_.get(),
                  .accepted = accepted_.get(),
                  .n_accepted = n_accepted_.get(),
                  .bonus = bonus_.get(),
                  .status = status_.get(),
                  .prefix_len = prefix_len_.get(),
                  .root_token = root_token_.get(),
                  .max_depth = max_depth_.get(),
                  .tokens = tokens_.get(),
                  .parents = parents_.get(),
                  .depths = depths_.get(),
                  .positions = positions_.get(),
                  .first_child = first_child_.get(),
                  .next_sibling = next_sibling_.get(),
                  .targets = targets_.get(),
                  .scores = scores_.get(),
                  .ancestors = ancestors_.get(),
                  .pages = bytes_of(pages_.get()),
                  .features = bytes_of(features_.get())};
  for (int layer = 0; layer < M::kLayers; ++layer) {
    s.out[layer] = out_[layer].get();
    s.lse[layer] = lse_[layer].get();
  }
  return s;
}

}  // namespace kdt::test
