// The two calls every layer makes, without the fields it has no use for.
#pragma once

#include "model/weight_loader.h"

namespace kdt::model {

// y[n_rows, out] (+)= x[n_rows, in] W^T.
inline void project(const Backend& backend, const Linear& weight, const float* x, int64_t x_stride,
                    float* y, int64_t y_stride, int32_t n_rows, bool accumulate = false) {
  linear(backend, {.x = x,
                   .y = y,
                   .weight = weight.get(),
                   .n_rows = n_rows,
                   .x_row_stride = x_stride,
                   .y_row_stride = y_stride,
                   .accumulate = accumulate});
}

// y = rms_norm(x) over the first weight.size() elements of each row; y may be x.
inline void norm_rows(const Backend& backend, const Buffer<float>& weight, const float* x,
                      int64_t x_stride, float* y, int64_t y_stride, int32_t n_rows, float eps) {
  rms_norm(backend, {.x = x,
                     .weight = weight.data(),
                     .y = y,
                     .n_rows = n_rows,
                     .dim = static_cast<int32_t>(weight.size()),
                     .x_row_stride = x_stride,
                     .y_row_stride = y_stride,
                     .eps = eps});
}

}  // namespace kdt::model
