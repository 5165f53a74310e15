// Sorting of 64-bit keys in shared memory.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

// Ascending, by all threads of the CTA; n is a power of two. Keys are visible to all afterwards.
__device__ inline void bitonic_sort(uint64_t* keys, int n) {
#pragma unroll 1
  for (int size = 2; size <= n; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step > 0; step /= 2) {
      __syncthreads();
#pragma unroll 1
      for (int i = threadIdx.x; i < n / 2; i += blockDim.x) {
        const int low = 2 * i - (i & (step - 1)), high = low + step;
        const bool ascending = (low & size) == 0;
        const uint64_t a = keys[low], b = keys[high];
        if ((a > b) == ascending) {
          keys[low] = b;
          keys[high] = a;
        }
      }
    }
  }
  __syncthreads();
}

}  // namespace kdt::cuda::device
