// Online-softmax merge of two partial attentions, row by row.
#include <algorithm>
#include <cmath>
#include <limits>

#include "base/rounding.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"

namespace kdt::cpu {
namespace {

void merge_row(const LseMergeParams& p, int64_t row) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float lse_a = p.lse_a[row], lse_b = p.lse_b[row];
  const float *a = p.out_a + row * p.dim, *b = p.out_b + row * p.dim;
  float* out = p.out + row * p.dim;
  if (lse_a == -kInf || lse_b == -kInf) {  // an empty side may hold anything, NaN included
    const float* source = lse_a == -kInf ? b : a;
    const float lse = lse_a == -kInf ? lse_b : lse_a;
    for (int32_t i = 0; i < p.dim; ++i) out[i] = lse == -kInf ? 0.0f : source[i];
    p.lse[row] = lse;
    return;
  }
  const float peak = std::max(lse_a, lse_b);
  const float weight_a = std::exp(lse_a - peak), weight_b = std::exp(lse_b - peak);
  const float total = weight_a + weight_b;
  const float share_a = weight_a / total, share_b = weight_b / total;
  for (int32_t i = 0; i < p.dim; ++i) out[i] = share_a * a[i] + share_b * b[i];
  p.lse[row] = peak + std::log(total);
}

}  // namespace

void lse_merge(const LseMergeParams& p, Stream) {
  constexpr int64_t kRowsPerTask = 16;
  parallel_for(ceil_div(p.n_rows, kRowsPerTask), p.n_rows * p.dim > 32768, [&](int64_t task) {
    const int64_t end = std::min(p.n_rows, (task + 1) * kRowsPerTask);
    for (int64_t row = task * kRowsPerTask; row < end; ++row) merge_row(p, row);
  });
}

}  // namespace kdt::cpu
