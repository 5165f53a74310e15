// kv_commit: accepted tail rows into the paged cache, all layers in one call, and the accepted
// rows' drafter features gathered beside it. Accepted row i of request b goes to position
// prefix_len[b] + i through the block table; rejected rows leave no trace. Pages must be reserved.
// FP8 rows bring their scales along (verify_attention.h).
// The same op stores the drafter's context K and V (accepted = 0, 1, 2, ...).
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct KvCommitParams {
  RowBatch rows;                        // n_nodes is not read
  const void* tail = nullptr;           // [n_layers, R, width], `dtype`
  void* pages = nullptr;                // [n_layers, n_pages, 64, width], `dtype`
  const int32_t* accepted = nullptr;    // [B, A] node ids; null = 0, 1, 2, ...
  const int32_t* n_accepted = nullptr;  // [B], 0 = nothing to do
  int32_t max_accepted = 0;             // A
  int32_t n_layers = 0;
  int32_t n_pages = 0;
  int32_t width = 0;              // elements of a row: 576 for MLA
  int64_t tail_layer_stride = 0;  // elements
  DType dtype = DType::kF32;      // element size is all that matters
  // Optional, with f8e4m3: the rows' scales move with them.
  const float* tail_scales = nullptr;  // [n_layers, R]
  float* page_scales = nullptr;        // [n_layers, n_pages, 64]

  // Optional: out[feature_offset[b] + i] = concat over c of features[c][row of accepted i].
  const float* features = nullptr;          // [n_features, R, hidden]
  float* features_out = nullptr;            // [*, n_features * hidden]
  const int32_t* feature_offset = nullptr;  // [B]
  int32_t n_features = 0;
  int32_t hidden = 0;
  int64_t feature_stride = 0;  // elements between captured layers
};

void check(const KvCommitParams& p);
void kv_commit(const Backend& backend, const KvCommitParams& p, Stream stream = {});

}  // namespace kdt
