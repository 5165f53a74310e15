// What the wgmma attention kernel's spare warps bring into the L2 before it is read.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_mask.cuh"

namespace kdt::cuda::sm90 {

inline constexpr int kSpareThreads = kThreads - kConsumerThreads - 32;
inline constexpr int kLineBytes = 128, kPageBytes = kKeys * kWidth * 2;

// What is read once the segments are known, while they are planned: tensor maps, and a share for
// each thread block of the tables, of the queries and, if there are few, of the keys.
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
  const int page = n_entries <= int64_t{2} * gridDim.x && blockIdx.x < n_entries
                       ? args.block_table[blockIdx.x]
                       : -1;
  share(args.row_offset, int64_t{args.lengths.n_requests} * 4);
  share(args.block_table, n_entries * 4);
  share(args.q, args.n_query_rows * kWidth * 2);
  if (page >= 0 && page < args.n_pages) {  // entries past a request's prefix may be anything
    const char* keys = static_cast<const char*>(args.pages) + int64_t{page} * kPageBytes;
    for (int i = at * kLineBytes; i < kPageBytes; i += kSpareThreads * kLineBytes)
      prefetch_l2(keys + i);
  }
}

// Keys ahead of the producer, by one of a few items that read them at the same time. Where nobody
// else reads them, memory is the limit, and copies are not late but many; where very many do, the
// L2 is.
__device__ __forceinline__ void prefetch_keys(const Args& args, Shared& shared) {
  constexpr int kAhead = 2, kItemsTogether = 4, kMostItems = 20;
  const int lane = threadIdx.x % 32;
  int n_jobs = 0, n_blocks = 0;
#pragma unroll 1
  for (Job job = next_job(shared, n_jobs++); job.kind != Job::kEnd;
       job = next_job(shared, n_jobs++)) {
    if (job.kind != Job::kAttend) continue;
    const Segment& s = job.segment;
    const int n_rows = job.n_nodes * args.lengths.n_heads;
    if (n_rows > kRows && n_rows <= kMostItems * kRows && s.item % kItemsTogether == 0) {
      const int32_t* table = args.block_table + int64_t{s.request} * args.max_blocks;
      const int end = min(s.n_blocks, prefix_blocks(job) - s.first_block);
#pragma unroll 1
      for (int i = kAhead; i < end; ++i) {
        const int page = __ldg(table + s.first_block + i);
        while (shared.blocks_copied < n_blocks + i - kAhead) __nanosleep(100);
        const char* at = static_cast<const char*>(args.pages) + int64_t{page} * kPageBytes;
        // Unrolled: where the address changes in a loop, each round waits for the one before.
#pragma unroll
        for (int b = 0; b < kPageBytes; b += 32 * kLineBytes)
          prefetch_l2(at + lane * kLineBytes + b);
      }
    }
    n_blocks += s.n_blocks;
  }
}

}  // namespace kdt::cuda::sm90
