// Copies accepted rows, one task per layer.
#include <cstring>

#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/row_checks.h"
#include "ops/arguments.h"

namespace kdt::cpu {
namespace {

constexpr const char* kOp = "kv_commit";
constexpr size_t kThreadBytes = 64 << 10;  // below this one thread is faster

int32_t node_of(const KvCommitParams& p, int32_t request, int32_t i) {
  return p.accepted ? p.accepted[static_cast<size_t>(request) * p.max_accepted + i] : i;
}

void check_requests(const KvCommitParams& p) {
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    const int32_t n = p.n_accepted[b];
    require(n >= 0 && n <= p.max_accepted, kOp, "n_accepted", n, "0..{} (max_accepted)",
            p.max_accepted);
    if (n == 0) continue;
    const int64_t prefix = p.rows.prefix_len[b],
                  capacity = int64_t{p.rows.max_blocks} * kPageTokens;
    require(prefix >= 0 && prefix + n <= capacity, kOp, "prefix_len", prefix,
            "0..{} to commit {} rows into {} blocks", capacity - n, n, p.rows.max_blocks);
    require(p.rows.row_offset[b] >= 0, kOp, "row_offset", p.rows.row_offset[b], "0 or more");
    for (int32_t i = 0; i < n; ++i) {
      const int32_t node = node_of(p, b, i), n_free = p.rows.n_rows - p.rows.row_offset[b];
      require(node >= 0 && node < n_free, kOp, "accepted", node, "0..{} (rows from row_offset {})",
              n_free - 1, p.rows.row_offset[b]);
    }
    const int32_t* table = p.rows.block_table + static_cast<size_t>(b) * p.rows.max_blocks;
    for (int64_t block = prefix / kPageTokens; block <= (prefix + n - 1) / kPageTokens; ++block)
      require(table[block] >= 0 && table[block] < p.n_pages, kOp, "block_table", table[block],
              "0..{} at block {} of request {}", p.n_pages - 1, block, b);
    require(!p.features || p.feature_offset[b] >= 0, kOp, "feature_offset",
            p.features ? p.feature_offset[b] : 0, "0 or more");
  }
}

void commit_layer(const KvCommitParams& p, int64_t layer) {
  const size_t row_bytes = static_cast<size_t>(p.width) * dtype_bytes(p.dtype);
  const char* tail = static_cast<const char*>(p.tail) +
                     static_cast<size_t>(layer) * p.tail_layer_stride * dtype_bytes(p.dtype);
  char* pages = static_cast<char*>(p.pages) +
                static_cast<size_t>(layer) * p.n_pages * kPageTokens * row_bytes;
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    for (int32_t i = 0; i < p.n_accepted[b]; ++i) {
      const size_t from = static_cast<size_t>(p.rows.row_offset[b]) + node_of(p, b, i);
      const size_t to = cache_row(p.rows, b, p.rows.prefix_len[b] + i);
      std::memcpy(pages + to * row_bytes, tail + from * row_bytes, row_bytes);
      if (p.tail_scales)
        p.page_scales[layer * p.n_pages * kPageTokens + to] =
            p.tail_scales[layer * p.rows.n_rows + from];
    }
  }
}

void gather_feature(const KvCommitParams& p, int64_t feature) {
  const float* source = p.features + feature * p.feature_stride;
  const size_t hidden = static_cast<size_t>(p.hidden);
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    for (int32_t i = 0; i < p.n_accepted[b]; ++i) {
      const size_t row = static_cast<size_t>(p.rows.row_offset[b]) + node_of(p, b, i);
      const size_t out = static_cast<size_t>(p.feature_offset[b]) + i;
      std::memcpy(p.features_out + (out * p.n_features + feature) * hidden, source + row * hidden,
                  hidden * sizeof(float));
    }
  }
}

}  // namespace

void kv_commit(const KvCommitParams& p, Stream) {
  check_requests(p);
  size_t n_moved = 0;
  for (int32_t b = 0; b < p.rows.n_requests; ++b) n_moved += p.n_accepted[b];
  if (n_moved == 0) return;
  const size_t layer_bytes = n_moved * p.width * dtype_bytes(p.dtype);
  parallel_for(p.n_layers, layer_bytes * p.n_layers >= kThreadBytes,
               [&](int64_t layer) { commit_layer(p, layer); });
  if (!p.features) return;
  parallel_for(p.n_features, n_moved * p.n_features * p.hidden * sizeof(float) >= kThreadBytes,
               [&](int64_t feature) { gather_feature(p, feature); });
}

}  // namespace kdt::cpu
