// Logits as kernels see them. A row is dealt to the warps in lines of 64 logits, so that every warp
// sees logits from all over the vocabulary: token ids are ordered by frequency, and one warp per
// region would put all large logits into a few warps. Who gets which logit depends on the
// vocabulary and the number of warps only, not on the element type or alignment, so neither do the
// bits of a sum.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "cuda/device/order.cuh"

namespace kdt::cuda::device {

constexpr int kPiece = 8;          // consecutive logits of a lane
constexpr int kLine = 8 * kPiece;  // of eight lanes

__device__ __forceinline__ float to_float(float x) {
  return x;
}
__device__ __forceinline__ float to_float(__nv_bfloat16 x) {
  return __bfloat162float(x);
}
__device__ __forceinline__ float to_float(__half x) {
  return __half2float(x);
}

template <typename T>
struct alignas(16) Piece {
  T x[kPiece];
};

// Pieces at or past the end of the row, and elements past it, are -inf.
template <typename T>
__device__ __forceinline__ Piece<T> load_piece(const T* row, int vocab, int first, bool aligned) {
  Piece<T> piece;
  if (aligned && first + kPiece <= vocab) {
    piece = *reinterpret_cast<const Piece<T>*>(row + first);
  } else {
#pragma unroll
    for (int i = 0; i < kPiece; ++i)
      piece.x[i] = first + i < vocab ? row[first + i] : static_cast<T>(-INFINITY);
  }
  return piece;
}

// A logit and its token id as one integer; ascending keys are logits descending, then ids
// ascending. kNoLogit is above every key.
constexpr uint64_t kNoLogit = ~uint64_t{0};

__device__ __forceinline__ uint64_t logit_key(float logit, int id) {
  return uint64_t{~ascending_key(logit)} << 32 | static_cast<uint32_t>(id);
}
__device__ __forceinline__ float key_logit(uint64_t key) {
  return value_of_key(~static_cast<uint32_t>(key >> 32));
}
__device__ __forceinline__ int key_id(uint64_t key) {
  return static_cast<int>(key);
}

}  // namespace kdt::cuda::device
