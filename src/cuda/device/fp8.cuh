// FP8 e4m3 codes: to fp16, exactly.
#pragma once

#include <cuda_fp8.h>

#include <cstdint>

namespace kdt::cuda::device {

// The codes in the low two bytes as a pair of fp16.
__device__ __forceinline__ uint32_t widen_codes(uint32_t codes) {
  const __half2_raw pair =
      __nv_cvt_fp8x2_to_halfraw2(static_cast<__nv_fp8x2_storage_t>(codes), __NV_E4M3);
  return static_cast<uint32_t>(pair.y) << 16 | pair.x;
}

// Every byte that is a code of NaN becomes zero.
__device__ __forceinline__ uint32_t clear_nan_codes(uint32_t codes) {
  return codes & ~__vcmpeq4(codes & 0x7f7f7f7fu, 0x7f7f7f7fu);
}

}  // namespace kdt::cuda::device
