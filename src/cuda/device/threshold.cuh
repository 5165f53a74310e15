// A threshold that at least k logits of a row reach and, since warps have alike shares, few more.
#pragma once

#include "cuda/device/lanes.cuh"
#include "cuda/device/pairs.cuh"
#include "cuda/device/staged_row.cuh"

namespace kdt::cuda::device {

constexpr uint32_t kBadRow = 0xffffffffu;  // as a maximum: there is NaN or +inf

// Which threshold k logits reach: any j warps of which each has q lanes at or above it hold k.
struct Quota {
  int q = 1, j = 1;
};

// j is at most 0.8 of the warps: with alike shares few more than k logits reach the threshold.
__host__ __device__ inline Quota quota_of(int k, int n_warps) {
  const int usable = n_warps * 4 / 5, q = (k + usable - 1) / usable;
  return {q, (k + q - 1) / q};
}

// Of a warp's share of a row, as keys.
struct WarpMaxima {
  uint32_t max;  // kBadRow if the share holds NaN or +inf
  uint32_t qth;  // the q-th largest of the lanes' maxima, 0 where fewer lanes are in use
};

template <typename T>
__device__ __forceinline__ WarpMaxima warp_maxima(const StagedRow<T>& row, int q) {
  float best = -INFINITY;
  bool bad = false;
  row.for_each([&](const Piece<T>& piece, int) {
    const float most = largest_or_nan(piece);
    bad |= !(most < INFINITY);
    best = fmaxf(best, most);
  });
  uint32_t key = ascending_key(best);
  const uint32_t max = __any_sync(kAllLanes, bad) ? kBadRow : __reduce_max_sync(kAllLanes, key);
  for (int i = 1; i < q; ++i) {
    const unsigned holders = __ballot_sync(kAllLanes, key == __reduce_max_sync(kAllLanes, key));
    if (static_cast<int>(threadIdx.x) % 32 == __ffs(holders) - 1) key = 0;
  }
  return {max, __reduce_max_sync(kAllLanes, key)};
}

// The j-th largest of qth[n_warps] of all warps, 16-byte aligned; four lanes rank one among all.
// `result` is shared memory. All threads of the CTA.
__device__ __forceinline__ float find_threshold(const uint32_t* qth, int n_warps, int j,
                                                uint32_t* result) {
  const int index = threadIdx.x / 4, part = threadIdx.x % 4;
  if (index < n_warps) {  // whole warps
    const uint32_t mine = qth[index];
    int above = 0;
    for (int i = part * 4; i < n_warps; i += 16) {
      const uint4 others = *reinterpret_cast<const uint4*>(&qth[i]);
      above += others.x > mine || (others.x == mine && i < index);
      above += others.y > mine || (others.y == mine && i + 1 < index);
      above += others.z > mine || (others.z == mine && i + 2 < index);
      above += others.w > mine || (others.w == mine && i + 3 < index);
    }
    above += __shfl_xor_sync(kAllLanes, above, 1);
    above += __shfl_xor_sync(kAllLanes, above, 2);
    if (part == 0 && above == j - 1) *result = mine;
  }
  __syncthreads();
  // A warp with fewer than q lanes in use has 0: no threshold.
  return *result ? value_of_key(*result) : -INFINITY;
}

}  // namespace kdt::cuda::device
