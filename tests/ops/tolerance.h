// How far a floating-point result may be from the reference: one formula for every test, the twin
// of python/kdtree/tolerance.py (tests/golden/README.md states it).
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "base/dtype.h"

namespace kdt::test {

// Half the distance from 1 to the next number.
inline double unit_roundoff(DType t) {
  switch (t) {
    case DType::kF64:
      return 0x1p-53;
    case DType::kF32:
      return 0x1p-24;
    case DType::kF16:
      return 0x1p-11;
    case DType::kBF16:
      return 0x1p-8;
    case DType::kF8E4M3:
      return 0x1p-4;
    default:
      return 0.0;
  }
}

// Largest allowed ||out - ref|| / ||ref||. `dtype`: the narrowest of the types the values pass
// through; `length`: terms of the longest sum; `norm_terms` / `norm_ref`: norm of the summed terms
// over that of the result, 1 without cancellation.
inline double tolerance(DType dtype, double length, double norm_terms = 1.0,
                        double norm_ref = 1.0) {
  const double accumulator = unit_roundoff(dtype == DType::kF64 ? DType::kF64 : DType::kF32);
  const double cancellation = norm_ref > 0 ? std::max(1.0, norm_terms / norm_ref) : 1.0;
  const double bound =
      unit_roundoff(dtype) + 4 * accumulator * std::sqrt(std::max(length, 1.0)) * cancellation;
  const double cap = dtype == DType::kF64      ? 1e-12
                     : dtype == DType::kF32    ? 1e-5
                     : dtype == DType::kF8E4M3 ? 4e-2
                                               : 5e-3;
  return std::min(bound, cap);
}

// Largest allowed |lse - ref|.
inline double lse_tolerance(DType dtype) {
  return dtype == DType::kF64      ? 1e-11
         : dtype == DType::kF32    ? 1e-4
         : dtype == DType::kF8E4M3 ? 4e-2
                                   : 2e-3;
}

// ||out - ref|| / ||ref|| (absolute if ref is 0); inf when a NaN occurs or infinities are not in
// the same places. `out` and `ref` are arrays of anything that converts to double.
template <typename Out, typename Ref>
double relative_error(const Out* out, const Ref* ref, size_t n) {
  double difference = 0.0, norm = 0.0;
  for (size_t i = 0; i < n; ++i) {
    const double a = static_cast<double>(out[i]), b = static_cast<double>(ref[i]);
    if (std::isnan(a) || std::isnan(b)) return std::numeric_limits<double>::infinity();
    if (std::isinf(a) || std::isinf(b)) {
      if (a != b) return std::numeric_limits<double>::infinity();
      continue;
    }
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  return std::sqrt(norm > 0 ? difference / norm : difference);
}

}  // namespace kdt::test
