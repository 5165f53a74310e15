// Order-preserving integer keys of floats, so that integer maxima (redux) select among them. A
// larger key is a larger number; 0 is below the key of every number.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

// NaN has no place in the order; -0 counts as +0.
__device__ __forceinline__ uint32_t ascending_key(float x) {
  const uint32_t bits = __float_as_uint(x + 0.0f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float value_of_key(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

__device__ __forceinline__ uint64_t ascending_key(double x) {
  const auto bits = static_cast<uint64_t>(__double_as_longlong(x + 0.0));
  return bits >> 63 ? ~bits : bits | 0x8000000000000000u;
}

}  // namespace kdt::cuda::device
