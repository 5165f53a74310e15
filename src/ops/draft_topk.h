// draft_topk: draft logits -> the K best log-probabilities per depth.
// logp = logit - log_z in fp32, log_z the fp32 log-sum-exp over the whole vocabulary.
// Order: logit descending, token id ascending. Entries past the vocabulary, and entries whose logit
// is -inf, are (-inf, -1). A NaN logit, or +inf, sets status[b] = 1 and leaves that request's
// outputs (-inf, -1); the others are unaffected. The log_z of two backends differ by at most 2 ulp,
// of 1 where log_z is smaller than that.
//
// Where the vocabulary is split over shards, each shard calls draft_topk with `shard` set on its
// columns, and draft_topk_merge makes of their results what draft_topk would give on all columns:
// the same ids, and log_z as near as two backends'.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct DraftTopkParams {
  const void* logits = nullptr;  // [B, L, vocab], `dtype`
  DType dtype = DType::kF32;     // f32, bf16, f16
  int64_t row_stride = 0;        // elements between depths; requests are L * row_stride apart
  int32_t batch = 0;             // B
  int32_t depth = 0;             // L
  int32_t vocab = 0;
  int32_t k = 0;              // K, 1..1024
  bool shard = false;         // logp receives the logits themselves; log_z must be there
  int32_t first_id = 0;       // token id of the first column
  float* logp = nullptr;      // [B, L, K]
  int32_t* ids = nullptr;     // [B, L, K]
  float* log_z = nullptr;     // [B, L], or null
  int32_t* status = nullptr;  // [B] 0 = ok, 1 = not a number
  Workspace workspace;
};

// The results of S shards with disjoint ids, one after another.
struct DraftTopkMergeParams {
  const float* shard_logits = nullptr;    // [S, B, L, K] draft_topk's logp
  const int32_t* shard_ids = nullptr;     // [S, B, L, K]
  const float* shard_log_z = nullptr;     // [S, B, L]
  const int32_t* shard_status = nullptr;  // [S, B]
  int32_t n_shards = 0;                   // S, 1..1024
  int32_t batch = 0;                      // B
  int32_t depth = 0;                      // L
  int32_t k = 0;                          // K, 1..1024
  float* logp = nullptr;                  // [B, L, K]
  int32_t* ids = nullptr;                 // [B, L, K]
  float* log_z = nullptr;                 // [B, L], or null
  int32_t* status = nullptr;              // [B] 1 if any shard's is
};

void check(const DraftTopkParams& p);
size_t draft_topk_workspace(const Backend& backend, const DraftTopkParams& largest);
void draft_topk(const Backend& backend, const DraftTopkParams& p, Stream stream = {});

void check(const DraftTopkMergeParams& p);
void draft_topk_merge(const Backend& backend, const DraftTopkMergeParams& p, Stream stream = {});

}  // namespace kdt
