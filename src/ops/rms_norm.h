// rms_norm: y = x * rsqrt(mean(x^2) + eps) * weight, per row of `dim` elements (Zhang & Sennrich
// 2019, arXiv 1910.07467). A row whose mean square overflows gives NaN.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct RmsNormParams {
  const float* x = nullptr;       // [M, H, dim]
  const float* weight = nullptr;  // [dim]
  float* y = nullptr;             // [M, H, dim]; may be x
  int32_t n_rows = 0;             // M
  int32_t n_heads = 1;            // H: per-head norms (q_norm, k_norm); 1 otherwise
  int32_t dim = 0;
  int64_t x_row_stride = 0;  // elements; heads are `dim` apart
  int64_t y_row_stride = 0;
  float eps = 1e-6f;
};

void check(const RmsNormParams& p);
void rms_norm(const Backend& backend, const RmsNormParams& p, Stream stream = {});

}  // namespace kdt
