#include "apps/bench_cost.h"

#include <algorithm>
#include <bit>
#include <unordered_set>
#include <vector>

namespace kdt::apps {
namespace {

constexpr double kFloat = sizeof(float);

template <typename T>
std::vector<T> read(const Backend& backend, const T* data, size_t count) {
  std::vector<T> host(count);
  backend.copy_out(host.data(), data, count * sizeof(T), {});
  backend.synchronize({});
  return host;
}

double size_of(DType dtype) {
  return static_cast<double>(dtype_bytes(dtype));
}

// The rows of each request and the tokens before them.
struct Lengths {
  std::vector<int32_t> offset, rows, prefix;
};

Lengths read_lengths(const Backend& backend, const RowBatch& rows) {
  const size_t n = rows.n_requests;
  return {read(backend, rows.row_offset, n), read(backend, rows.n_nodes, n),
          read(backend, rows.prefix_len, n)};
}

}  // namespace

OpCost cost(const Backend&, const LinearParams& p) {
  if (p.n_rows == 0) return {};
  const LinearWeight& w = *p.weight;
  const double rows = p.n_rows, groups = w.n_groups, in = w.in_features, out = w.out_features;
  const double inputs = rows * in * (p.x_group_stride == 0 ? 1 : groups);
  const double outputs = rows * out * groups * (p.accumulate ? 2 : 1);
  return {static_cast<double>(w.bytes) + kFloat * (inputs + outputs),
          2.0 * rows * groups * in * out};
}

OpCost cost(const Backend&, const EmbeddingParams& p) {
  return {static_cast<double>(p.n_rows) * p.hidden * (size_of(p.dtype) + kFloat), 0.0};
}

OpCost cost(const Backend&, const RmsNormParams& p) {
  const double elements = static_cast<double>(p.n_rows) * p.n_heads * p.dim;
  return {kFloat * (2.0 * elements + p.dim), 4.0 * elements};
}

OpCost cost(const Backend&, const RopeParams& p) {
  const double rows = p.n_rows, elements = rows * p.n_heads * p.dim;
  return {kFloat * 2.0 * elements, 3.0 * elements + rows * p.dim * 1.5};
}

OpCost cost(const Backend&, const SiluMulParams& p) {
  return {kFloat * 3.0 * static_cast<double>(p.n), 5.0 * static_cast<double>(p.n)};
}

OpCost cost(const Backend&, const MoeRouteParams& p) {
  const double elements = static_cast<double>(p.n_rows) * p.n_experts;
  return {kFloat * (elements + p.n_experts) + 8.0 * p.n_rows * p.n_selected, 3.0 * elements};
}

OpCost cost(const Backend& backend, const MoeExpertsParams& p) {
  const size_t slots = static_cast<size_t>(p.n_rows) * p.n_selected;
  const std::vector<int32_t> ids = read(backend, p.ids, slots);
  const double used = static_cast<double>(std::unordered_set(ids.begin(), ids.end()).size());
  const double weights = static_cast<double>(p.gate->bytes + p.up->bytes + p.down->bytes);
  const double hidden = p.gate->in_features, width = p.gate->out_features;
  return {weights * used / p.gate->n_groups + kFloat * 3.0 * p.n_rows * hidden + 8.0 * slots,
          slots * width * (6.0 * hidden + 5.0)};
}

OpCost cost(const Backend& backend, const VerifyAttentionParams& p) {
  const Lengths lengths = read_lengths(backend, p.rows);
  const double width = p.latent_dim + p.rope_dim, heads = p.n_heads;
  std::vector<uint64_t> ancestors;
  if (p.ancestors)
    ancestors = read(backend, p.ancestors, static_cast<size_t>(p.rows.n_rows) * p.n_words);
  double keys = 0, pairs = 0, rows = 0;  // pairs: (query row, visible key)
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    const int32_t n = lengths.rows[b];
    if (n == 0) continue;
    rows += n;
    keys += lengths.prefix[b] + n;
    pairs += static_cast<double>(n) * lengths.prefix[b];
    if (!p.ancestors) pairs += n * (n + 1.0) / 2;
    for (size_t w = 0; p.ancestors && w < static_cast<size_t>(n) * p.n_words; ++w)
      pairs += std::popcount(ancestors[static_cast<size_t>(lengths.offset[b]) * p.n_words + w]);
  }
  return {keys * width * size_of(p.kv_dtype) + rows * heads * width * size_of(p.q_dtype) +
              rows * heads * (p.latent_dim * size_of(p.out_dtype) + kFloat),
          pairs * heads * (2.0 * width + 2.0 * p.latent_dim + 1.0)};
}

OpCost cost(const Backend&, const LseMergeParams& p) {
  const double rows = static_cast<double>(p.n_rows);
  return {kFloat * 3.0 * rows * (p.dim + 1.0), rows * (3.0 * p.dim + 4.0)};
}

OpCost cost(const Backend& backend, const DraftAttentionParams& p) {
  const Lengths lengths = read_lengths(backend, p.rows);
  const double dim = p.head_dim;
  double keys = 0, pairs = 0, rows = 0;
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    const int32_t n = lengths.rows[b], prefix = lengths.prefix[b];
    if (n == 0) continue;
    const int32_t window = p.sliding_window > 0 ? p.sliding_window : prefix + n;
    rows += n;
    keys += std::min(prefix, window - 1) + n;
    for (int32_t i = 0; i < n; ++i) {
      const int32_t position = prefix + i, last = p.causal ? position : prefix + n - 1;
      pairs += last - std::max(position - window + 1, 0) + 1;
    }
  }
  return {kFloat * dim * (2.0 * keys * p.n_kv_heads + 2.0 * rows * p.n_heads),
          pairs * p.n_heads * (4.0 * dim + 1.0)};
}

OpCost cost(const Backend&, const DraftTopkParams& p) {
  const double rows = static_cast<double>(p.batch) * p.depth, logits = rows * p.vocab;
  return {logits * size_of(p.dtype) + 8.0 * rows * p.k, 2.0 * logits};
}

OpCost cost(const Backend& backend, const TreeBuildParams& p) {
  double nodes = 0;
  for (const int32_t n : read(backend, p.n_nodes, p.batch)) nodes += n;
  const double per_node = 6 * sizeof(int32_t) + sizeof(double) + sizeof(uint64_t) * p.n_words;
  return {nodes * (per_node + sizeof(float) + sizeof(int32_t)), 2.0 * nodes};
}

OpCost cost(const Backend& backend, const TreeAcceptParams& p) {
  const std::vector<int32_t> n_nodes = read(backend, p.n_nodes, p.batch);
  const std::vector<int32_t> n_accepted = read(backend, p.n_accepted, p.batch);
  double rows = 0;  // whose target token is drawn
  for (int32_t b = 0; b < p.batch; ++b)
    if (n_nodes[b] > 0) rows += p.targets ? n_nodes[b] : n_accepted[b];
  return {kFloat * rows * p.vocab, 0.0};
}

OpCost cost(const Backend& backend, const KvCommitParams& p) {
  double rows = 0;
  for (const int32_t n : read(backend, p.n_accepted, p.rows.n_requests)) rows += n;
  const double features = p.features ? kFloat * p.n_features * p.hidden : 0.0;
  return {2.0 * rows * (p.n_layers * p.width * size_of(p.dtype) + features), 0.0};
}

}  // namespace kdt::apps
