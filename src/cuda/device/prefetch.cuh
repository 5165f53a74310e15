// Requests for lines of memory that will be wanted.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

// Brings the line at `at`, global memory, towards the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
}

// The integer at `from` if `valid`, else `other`; no branch. Nobody may write it meanwhile.
__device__ __forceinline__ int32_t load_if(bool valid, const int32_t* from, int32_t other) {
  int32_t value = other;
  asm("{\n"
      ".reg .pred p;\n"
      "setp.ne.u32 p, %2, 0;\n"
      "@p ld.global.nc.b32 %0, [%1];\n"
      "}\n"
      : "+r"(value)
      : "l"(from), "r"(static_cast<uint32_t>(valid)));
  return value;
}

// Brings `bytes` from `at`, global memory, both multiples of 16, towards the L2 cache (sm_90 and
// up). All lanes of a warp call it together, with the same arguments.
__device__ __forceinline__ void prefetch_l2(const void* at, uint32_t bytes) {
  asm volatile(
      "{\n"
      ".reg .pred p;\n"
      "elect.sync _|p, 0xffffffff;\n"
      "@p cp.async.bulk.prefetch.L2.global [%0], %1;\n"
      "}\n" ::"l"(__cvta_generic_to_global(at)),
      "r"(bytes)
      : "memory");
}

}  // namespace kdt::cuda::device
