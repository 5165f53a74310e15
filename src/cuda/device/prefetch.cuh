// Requests for lines of memory that will be wanted.
#pragma once

namespace kdt::cuda::device {

// Brings the line at `at`, global memory, towards the L2 cache.
__device__ __forceinline__ void prefetch_l2(const void* at) {
  asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(at)));
}

}  // namespace kdt::cuda::device
