// Eight logits of a lane, worked on in pairs where their type has instructions for two.
#pragma once

#include "cuda/device/logits.cuh"

namespace kdt::cuda::device {

// The largest; NaN if any is.
__device__ __forceinline__ float largest_or_nan(const Piece<float>& piece) {
  float best = piece.x[0];
#pragma unroll
  for (int i = 1; i < kPiece; ++i)
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(best) : "f"(best), "f"(piece.x[i]));
  return best;
}

template <typename Pair, typename T>
__device__ __forceinline__ float largest_of_pairs(const Piece<T>& piece) {
  const auto* pairs = reinterpret_cast<const Pair*>(piece.x);
  const Pair best = __hmax2_nan(__hmax2_nan(pairs[0], pairs[1]), __hmax2_nan(pairs[2], pairs[3]));
  return to_float(__hmax_nan(best.x, best.y));
}
__device__ __forceinline__ float largest_or_nan(const Piece<__nv_bfloat16>& piece) {
  return largest_of_pairs<__nv_bfloat162>(piece);
}
__device__ __forceinline__ float largest_or_nan(const Piece<__half>& piece) {
  return largest_of_pairs<__half2>(piece);
}

}  // namespace kdt::cuda::device
