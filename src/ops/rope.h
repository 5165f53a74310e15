// rope: rotary position embedding (Su et al. 2021, arXiv 2104.09864).
// angle[i] = fp32(position) * inv_freq[i], rounded to fp32; cos and sin are multiplied by
// amplitude.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct RopeParams {
  const float* x = nullptr;            // [M, H, dim]
  float* y = nullptr;                  // [M, H, dim]; may be x (then with the same strides)
  const int32_t* positions = nullptr;  // [M]
  const float* inv_freq = nullptr;     // [dim / 2]
  int32_t n_rows = 0;                  // M
  int32_t n_heads = 1;                 // H
  int32_t dim = 0;                     // even
  int64_t x_row_stride = 0;            // elements
  int64_t x_head_stride = 0;
  int64_t y_row_stride = 0;
  int64_t y_head_stride = 0;
  float amplitude = 1.0f;   // YaRN attention factor on cos and sin
  bool interleaved = true;  // pairs (2i, 2i+1), DeepSeek; false: (i, i + dim/2), Qwen
};

void check(const RopeParams& p);
void rope(const Backend& backend, const RopeParams& p, Stream stream = {});

}  // namespace kdt
