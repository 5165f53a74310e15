// A batch as the schedule of the wgmma attention kernel counts it, and the divisions it does.
#pragma once

#include <cstdint>

#include "base/rounding.h"

namespace kdt::cuda::sm90 {

inline constexpr int kRows = 64;  // query rows of an item
inline constexpr int kKeys = 64;  // keys of a key block

#ifdef __CUDACC__
__device__ inline float reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
#endif

// Divisions are most of what it takes to find a segment, and the general one is slow. This is a / b
// for 0 <= a < 2^21:
__host__ __device__ inline int quotient(int a, int b) {
#ifdef __CUDA_ARCH__
  return static_cast<int>((static_cast<float>(a) + 0.5f) * reciprocal(static_cast<float>(b)));
#else
  return a / b;
#endif
}

__host__ __device__ inline int quotient_up(int a, int b) {
  return quotient(a + b - 1, b);
}

// a / b for 0 <= a / b < 2^21.
__host__ __device__ inline int long_quotient(int a, int b) {
#ifdef __CUDA_ARCH__
  const int q = static_cast<int>(static_cast<float>(a) * reciprocal(static_cast<float>(b)));
  const int rest = a - q * b;
  return q + (rest >= b) - (rest < 0);
#else
  return a / b;
#endif
}

template <typename T>
__host__ __device__ inline T min(T a, T b) {
  return a < b ? a : b;
}
template <typename T>
__host__ __device__ inline T max(T a, T b) {
  return a < b ? b : a;
}

struct BatchLengths {
  const int32_t* n_nodes;
  const int32_t* prefix_len;
  int32_t n_requests, n_heads;

  __host__ __device__ int items(int b) const { return items_of(n_nodes[b]); }
  __host__ __device__ int key_blocks(int b) const {
    return key_blocks_of(n_nodes[b], prefix_len[b]);
  }
  __host__ __device__ int items_of(int nodes) const { return ceil_div(nodes * n_heads, kRows); }
  static __host__ __device__ int key_blocks_of(int nodes, int prefix) {
    return ceil_div(prefix, kKeys) + ceil_div(nodes, kKeys);
  }
};

// Of the requests: items, and key blocks of an item.
struct BatchTotals {
  int items = 0, most_items = 0, least_items = 1 << 30;
  int most_blocks = 0, least_blocks = 1 << 30;

  __host__ __device__ void add(int items_of_one, int blocks_of_one) {
    items += items_of_one;
    most_items = max(most_items, items_of_one);
    least_items = min(least_items, items_of_one);
    if (items_of_one == 0) return;  // an idle request
    most_blocks = max(most_blocks, blocks_of_one);
    least_blocks = min(least_blocks, blocks_of_one);
  }
  __host__ __device__ bool same_items() const { return least_items == most_items; }
  __host__ __device__ bool uniform() const { return same_items() && least_blocks == most_blocks; }
};

// A request, and the sum of something over the requests before it.
struct Place {
  int request, before;
};

// The request at which the sum of fn(request) passes `at`, or n_requests. All lanes of a warp call
// it.
template <typename Fn>
__host__ __device__ inline Place find(int n_requests, int at, const Fn& fn) {
  int before = 0;
#if defined(__CUDACC__) && defined(__CUDA_ARCH__)
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int base = 0; base < n_requests; base += 32) {
    const int own = base + lane < n_requests ? fn(base + lane) : 0;
    int sum = own;
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
      const int other = __shfl_up_sync(~0u, sum, d);
      if (lane >= d) sum += other;
    }
    const uint32_t passing = __ballot_sync(~0u, before + sum > at);
    if (passing != 0) {
      const int first = __ffs(static_cast<int>(passing)) - 1;
      return {base + first, __shfl_sync(~0u, before + sum - own, first)};
    }
    before += __shfl_sync(~0u, sum, 31);
  }
#else
  for (int b = 0; b < n_requests; ++b) {
    const int own = fn(b);
    if (before + own > at) return {b, before};
    before += own;
  }
#endif
  return {n_requests, before};
}

}  // namespace kdt::cuda::sm90
