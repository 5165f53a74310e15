// Narrowing on the way to memory.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

namespace kdt::cuda::device {

// Two floats as a 32-bit pair of T, the first in the low half.
template <typename T>
__device__ __forceinline__ uint32_t pack(float low, float high);

template <>
__device__ __forceinline__ uint32_t pack<__nv_bfloat16>(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

template <>
__device__ __forceinline__ uint32_t pack<__half>(float low, float high) {
  const __half2 pair = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&pair);
}

// Elements `index` (even) and index + 1 of an array of fp32, bf16 or fp16.
__device__ __forceinline__ void store_pair(void* array, bool f32, bool bf16, int64_t index,
                                           float first, float second) {
  if (f32)
    *reinterpret_cast<float2*>(static_cast<float*>(array) + index) = {first, second};
  else
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(array) + index) =
        bf16 ? pack<__nv_bfloat16>(first, second) : pack<__half>(first, second);
}

}  // namespace kdt::cuda::device
