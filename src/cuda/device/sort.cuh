// Sorting of 64-bit keys in shared memory.
#pragma once

#include <cstdint>

#include "cuda/device/lanes.cuh"

namespace kdt::cuda::device {

constexpr int kLaneKeys = 4, kSortedRun = 32 * kLaneKeys;  // keys that a warp sorts in registers

__device__ __forceinline__ void exchange(uint64_t& low, uint64_t& high, bool ascending) {
  const bool swapped = (low > high) == ascending;
  const uint64_t kept = swapped ? high : low;
  high = swapped ? low : high;
  low = kept;
}

// The steps below kSortedRun of a bitonic merge to runs of `size`, from `step` on, of the keys from
// `first` on in every lane.
__device__ __forceinline__ void merge_run(uint64_t (&keys)[kLaneKeys], int first, int size,
                                          int step) {
#pragma unroll 1
  for (; step >= kLaneKeys; step /= 2) {
    const bool smaller = ((first & size) == 0) == ((first & step) == 0);
#pragma unroll
    for (uint64_t& key : keys) {
      const uint64_t other = __shfl_xor_sync(kAllLanes, key, step / kLaneKeys);
      key = (other < key) == smaller ? other : key;
    }
  }
  if (step == 2) {
    exchange(keys[0], keys[2], (first & size) == 0);
    exchange(keys[1], keys[3], (first & size) == 0);
  }
  exchange(keys[0], keys[1], (first & size) == 0);
  exchange(keys[2], keys[3], ((first + 2) & size) == 0);
}

// Ascending, by all threads of the CTA; keys[n], 16-byte aligned, are visible to all afterwards.
// Fills up, with keys as large as any, to a power of two, kSortedRun at least.
__device__ inline void sort(uint64_t* keys, int n) {
  const int thread = static_cast<int>(threadIdx.x), n_threads = static_cast<int>(blockDim.x);
  int padded = kSortedRun;
  while (padded < n) padded *= 2;
  for (int i = n + thread; i < padded; i += n_threads) keys[i] = ~uint64_t{0};
#pragma unroll 1
  for (int size = kSortedRun; size <= padded; size *= 2) {
#pragma unroll 1
    for (int step = size / 2; step >= kSortedRun; step /= 2) {
      __syncthreads();
#pragma unroll 2
      for (int i = thread; i < padded / 2; i += n_threads) {
        const int low = 2 * i - (i & (step - 1));
        uint64_t a = keys[low], b = keys[low + step];
        exchange(a, b, (low & size) == 0);
        keys[low] = a;
        keys[low + step] = b;
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int first = thread * kLaneKeys; first < padded; first += n_threads * kLaneKeys) {
      auto* at = reinterpret_cast<ulonglong2*>(&keys[first]);
      ulonglong2 pair[2] = {at[0], at[1]};
      uint64_t run[kLaneKeys] = {pair[0].x, pair[0].y, pair[1].x, pair[1].y};
#pragma unroll 1
      for (int s = size == kSortedRun ? 2 : size; s <= size; s *= 2)
        merge_run(run, first, s, min(s, kSortedRun) / 2);
      at[0] = {run[0], run[1]};
      at[1] = {run[2], run[3]};
    }
  }
  __syncthreads();
}

}  // namespace kdt::cuda::device
