// What the wgmma attention kernel's spare warps bring into the L2 at its start.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

inline constexpr int kSpareThreads = kThreads - kConsumerThreads - 32;
inline constexpr int kLineBytes = 128;

// What is read later, while the plan comes: tensor maps, and a share for each thread block of the
// tables and of the queries.
__device__ __forceinline__ void prefetch_start(const Args& args) {
  constexpr int kMostLines = 4;
  const int at = threadIdx.x - (kThreads - kSpareThreads);
  const int n = kSpareThreads * gridDim.x, first = blockIdx.x * kSpareThreads + at;
  if (at == 0) {
    tma_prefetch_map(&args.q_map);
    tma_prefetch_map(&args.pages_map);
    tma_prefetch_map(&args.tail_map);
  }
  const auto share = [&](const void* data, int64_t bytes) {
    const int64_t lines = min(ceil_div(bytes, kLineBytes), int64_t{n} * kMostLines);
    for (int64_t i = first; i < lines; i += n)
      prefetch_l2(static_cast<const char*>(data) + i * kLineBytes);
  };
  const int64_t n_entries = int64_t{args.lengths.n_requests} * args.max_blocks;
  share(args.row_offset, int64_t{args.lengths.n_requests} * 4);
  share(args.block_table, n_entries * 4);
  share(args.q, args.n_query_rows * kWidth * 2);
}

}  // namespace kdt::cuda::sm90
