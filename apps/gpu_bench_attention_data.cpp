#include "apps/gpu_bench_attention_data.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/dtype.h"
#include "base/error.h"
#include "base/rounding.h"

namespace kdt::apps {
namespace {

constexpr int32_t kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
constexpr float kScale = 0.01f;  // of FP8 keys
constexpr int32_t kTrees = 8;    // that differ

}  // namespace

int32_t AttentionBatch::most_nodes() const {
  return *std::max_element(nodes.begin(), nodes.end());
}

int64_t AttentionBatch::n_pages() const {
  int64_t n = 0;
  for (const int32_t keys : n_keys) n += ceil_div(keys, kPageTokens);
  return n;
}

int32_t AttentionBatch::most_pages() const {
  return ceil_div(*std::max_element(n_keys.begin(), n_keys.end()), kPageTokens);
}

double AttentionBatch::floor_us() const {
  double flops = 0, bytes = 0;
  for (int32_t b = 0; b < size(); ++b) {
    const double queries = double{1} * nodes[b] * heads, keys = n_keys[b];
    flops += 2 * queries * keys * (kWidth + kLatent);
    bytes += keys * kWidth * 2 + queries * (kWidth + kLatent) * 2;
  }
  return 1e6 * std::max(flops / 800e12, bytes / 4.25e12);
}

AttentionPool::AttentionPool(const Backend& backend, DType dtype,
                             const std::vector<AttentionBatch>& batches)
    : backend_(backend), data_(backend), dtype_(dtype) {
  for (const AttentionBatch& b : batches) {
    n_pages_ = std::max(n_pages_, b.n_pages());
    n_queries_ = std::max(n_queries_, int64_t{b.size()} * b.most_nodes() * b.heads);
    batch_ = std::max(batch_, b.size());
  }
  queries_ = repeat(rows(DType::kBF16, 50'021), n_queries_, kWidth * 2);
  keys_ = repeat(rows(dtype, 100'003), n_pages_ * kPageTokens, kWidth * dtype_bytes(dtype));
  if (dtype == DType::kF8E4M3)
    scales_ = data_.put(std::vector<float>(n_pages_ * kPageTokens, kScale));
  out_ = data_.zeros<uint16_t>(n_queries_ * kLatent);
  lse_ = data_.zeros<float>(n_queries_);
}

VerifyAttentionParams AttentionPool::problem(const AttentionBatch& batch,
                                             const AttentionVariant& variant) {
  const int32_t n = batch.size(), nodes = batch.most_nodes(), max_blocks = batch.most_pages();
  std::vector<int32_t> offsets(n), prefix(n), table(int64_t{n} * max_blocks);
  auto page = static_cast<int32_t>(batch.n_pages());
  for (int32_t b = 0; b < n; ++b) {
    offsets[b] = b * nodes;
    prefix[b] = batch.n_keys[b] - batch.nodes[b];
    for (int32_t i = 0; i < ceil_div(batch.n_keys[b], kPageTokens); ++i)
      table[int64_t{b} * max_blocks + i] = --page;
  }
  VerifyAttentionParams p = {.rows = {.n_requests = n,
                                      .n_rows = n * nodes,
                                      .row_offset = data_.put(offsets),
                                      .n_nodes = data_.put(batch.nodes),
                                      .prefix_len = data_.put(prefix),
                                      .block_table = data_.put(table),
                                      .max_blocks = max_blocks},
                             .q = queries_,
                             .kv_pages = keys_,
                             .tail = keys_,
                             .page_scales = scales_,
                             .tail_scales = scales_,
                             .ancestors = trees(nodes),
                             .out = out_,
                             .lse = lse_,
                             .n_words = ceil_div(nodes, 64),
                             .n_heads = batch.heads,
                             .n_pages = static_cast<int32_t>(batch.n_pages()),
                             .scale = 1.0f / 24.0f,
                             .q_dtype = DType::kBF16,
                             .kv_dtype = dtype_,
                             .out_dtype = DType::kBF16,
                             .batch_invariant = variant.batch_invariant};
  const size_t bytes = verify_attention_workspace(*cuda_backend(), p);
  if (workspace_.bytes < bytes) workspace_ = data_.workspace(bytes);
  p.workspace = workspace_;
  verify_attention_plan(backend_, p);
  return p;
}

double AttentionPool::check(const VerifyAttentionParams& p, const AttentionBatch& batch,
                            int32_t first) {
  verify_attention(backend_, p);
  const Backend& exact = *cuda_backend_with_attention("simt");
  const auto n_queries = static_cast<size_t>(p.rows.n_rows) * p.n_heads;
  Buffer<float> want(backend_, n_queries * (kLatent + 1));
  std::vector<int32_t> nodes(batch.size());
  for (int32_t b = first; b < batch.size(); ++b)
    nodes[b] = batch.n_keys[b] <= 1024 ? batch.nodes[b] : std::min(batch.nodes[b], 4);
  VerifyAttentionParams some = p;
  some.rows.n_nodes = data_.put(nodes);
  some.out = want.data();
  some.lse = want.data() + n_queries * kLatent;
  some.out_dtype = DType::kF32;
  verify_attention(exact, some);  // simt needs no plan, and leaves the workspace alone
  double worst = 0;
  for (int32_t b = first; b < batch.size(); ++b) {
    const size_t at = static_cast<size_t>(b) * batch.most_nodes() * p.n_heads * kLatent;
    const size_t count = static_cast<size_t>(nodes[b]) * p.n_heads * kLatent;
    const std::vector<float> ref = data_.get(want.data() + at, count);
    const std::vector<uint16_t> got = data_.get(static_cast<const uint16_t*>(p.out) + at, count);
    double difference = 0, norm = 0;
    for (size_t i = 0; i < count; ++i) {
      const double d = double{bf16_to_f32(got[i])} - ref[i];
      difference += d * d;
      norm += double{ref[i]} * ref[i];
    }
    const double error = std::sqrt(difference / norm);
    if (!(error < 5e-3))
      throw_error(ErrorCode::kNumeric,
                  "verify_attention is wrong at request {} of {}, {} heads, {} nodes, {} keys: "
                  "relative error {:.2e}",
                  b, batch.size(), batch.heads, batch.nodes[b], batch.n_keys[b], error);
    worst = std::max(worst, error);
  }
  return worst;
}

std::vector<uint8_t> AttentionPool::rows(DType dtype, size_t count) {
  std::vector<uint8_t> block(count * kWidth * dtype_bytes(dtype));
  for (size_t i = 0; i < count * kWidth; ++i) {
    const float x = data_.normal();
    const uint16_t wide = f32_to_bf16(x);
    if (dtype == DType::kBF16)
      std::copy_n(reinterpret_cast<const uint8_t*>(&wide), 2, &block[2 * i]);
    else
      block[i] = f32_to_f8e4m3(x / kScale);
  }
  return block;
}

// An odd number of rows again and again, so that two requests differ page by page.
uint8_t* AttentionPool::repeat(const std::vector<uint8_t>& block, int64_t n_rows,
                               size_t row_bytes) {
  const size_t bytes = n_rows * row_bytes;
  auto* to = data_.zeros<uint8_t>(bytes);
  for (size_t at = 0; at < bytes; at += block.size()) {
    const size_t count = std::min(block.size(), bytes - at);
    if (at == 0)
      backend_.copy_in(to, block.data(), count, {});
    else
      backend_.copy(to + at, to, count, {});
  }
  return to;
}

// Ancestor words of the largest batch; every eighth request has the same tree. The first nodes of a
// best-first tree are the tree of a smaller budget.
uint64_t* AttentionPool::trees(int32_t nodes) {
  uint64_t*& all = trees_[nodes];
  if (all) return all;
  const uint64_t* some = tree_ancestors(backend_, data_, kTrees, nodes - 1);
  const size_t words = static_cast<size_t>(kTrees) * nodes * ceil_div(nodes, 64);
  all = data_.zeros<uint64_t>(words * ceil_div(batch_, kTrees));
  for (int32_t b = 0; b < batch_; b += kTrees)
    backend_.copy(all + b / kTrees * words, some, words * sizeof(uint64_t), {});
  return all;
}

}  // namespace kdt::apps
