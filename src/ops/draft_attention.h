// draft_attention: the DFlash drafter's attention of one block over its context KV and itself
// (grouped-query, arXiv 2305.13245). Row i of request b stands at position prefix_len[b] + i; the
// context holds positions 0 .. prefix_len[b] - 1 in pages.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct DraftAttentionParams {
  RowBatch rows;                   // n_nodes[b] = block size
  const float* q = nullptr;        // [R, n_heads, head_dim]
  const float* k = nullptr;        // [R, n_kv_heads, head_dim], of the block
  const float* v = nullptr;        // [R, n_kv_heads, head_dim]
  const float* k_pages = nullptr;  // [n_pages, 64, n_kv_heads, head_dim], of the context
  const float* v_pages = nullptr;  // same
  float* out = nullptr;            // [R, n_heads, head_dim]
  int32_t n_pages = 0;             // of the cache; block tables name 0 .. n_pages - 1
  int32_t n_heads = 0;
  int32_t n_kv_heads = 0;  // divides n_heads
  int32_t head_dim = 0;
  float scale = 0.0f;
  int32_t sliding_window = 0;  // w > 0: query at p sees positions > p - w; 0 = all
  bool causal = false;         // within the block: row i sees rows 0 .. i only
  Workspace workspace;
};

void check(const DraftAttentionParams& p);
size_t draft_attention_workspace(const Backend& backend, const DraftAttentionParams& largest);
void draft_attention(const Backend& backend, const DraftAttentionParams& p, Stream stream = {});

}  // namespace kdt
