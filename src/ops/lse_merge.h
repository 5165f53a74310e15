// lse_merge: two partial attentions over disjoint key sets -> the attention over their union
// (online softmax, arXiv 1805.02867):
//   lse = log(exp(lse_a) + exp(lse_b)),  out = exp(lse_a - lse) out_a + exp(lse_b - lse) out_b
// An empty side (lse = -inf) contributes nothing; two empty sides give 0 and -inf.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct LseMergeParams {
  const float* out_a = nullptr;  // [R, dim], R = rows x heads
  const float* lse_a = nullptr;  // [R]
  const float* out_b = nullptr;  // [R, dim]
  const float* lse_b = nullptr;  // [R]
  float* out = nullptr;          // [R, dim]; may be out_a or out_b
  float* lse = nullptr;          // [R]; may be lse_a or lse_b
  int64_t n_rows = 0;            // R
  int32_t dim = 0;
};

void check(const LseMergeParams& p);
void lse_merge(const Backend& backend, const LseMergeParams& p, Stream stream = {});

}  // namespace kdt
