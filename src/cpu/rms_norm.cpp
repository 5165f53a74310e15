#include "ops/rms_norm.h"

#include <cmath>

#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/simd.h"

namespace kdt::cpu {
namespace {

using namespace KDT_ISA;

// Four vectors take turns, sixteen elements each, and are added pairwise: one order for every row.
float sum_of_squares(const float* x, int64_t dim) {
  f32x16 acc[4] = {zero(), zero(), zero(), zero()};
  int64_t i = 0;
  for (; i + 4 * kLanes <= dim; i += 4 * kLanes) {
    for (int j = 0; j < 4; ++j) {
      const f32x16 v = load(x + i + j * kLanes);
      acc[j] = fma(v, v, acc[j]);
    }
  }
  for (int j = 0; i < dim; ++j, i += kLanes) {
    const f32x16 v = load_first(x + i, static_cast<int>(dim - i < kLanes ? dim - i : kLanes));
    acc[j] = fma(v, v, acc[j]);
  }
  return sum(add(add(acc[0], acc[1]), add(acc[2], acc[3])));
}

void normalize(const float* x, const float* weight, float* y, int64_t dim, float eps) {
  const float mean = sum_of_squares(x, dim) / static_cast<float>(dim);
  // Dividing by infinity would turn an overflowing row into zeros that look like an answer.
  const float norm = std::isinf(mean) ? NAN : 1.0f / std::sqrt(mean + eps);
  const f32x16 scale = broadcast(norm);
  int64_t i = 0;
  for (; i + kLanes <= dim; i += kLanes) {
    store(y + i, mul(mul(load(x + i), scale), load(weight + i)));
  }
  const int rest = static_cast<int>(dim - i);
  if (rest) {
    store_first(y + i, mul(mul(load_first(x + i, rest), scale), load_first(weight + i, rest)),
                rest);
  }
}

}  // namespace

void rms_norm(const RmsNormParams& p, Stream) {
  const int64_t dim = p.dim;
  parallel_for(p.n_rows, int64_t{p.n_rows} * p.n_heads * dim > 100'000, [&](int64_t m) {
    for (int64_t h = 0; h < p.n_heads; ++h) {
      normalize(p.x + m * p.x_row_stride + h * dim, p.weight, p.y + m * p.y_row_stride + h * dim,
                dim, p.eps);
    }
  });
}

}  // namespace kdt::cpu
