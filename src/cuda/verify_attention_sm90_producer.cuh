// The producer warp of the wgmma attention kernel: plans the block's segments, hands them to the
// consumers as jobs and copies their queries and keys into shared memory.
#pragma once

#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

inline constexpr uint32_t kAllLanes = 0xffffffffu;

// Totals of the batch; all lanes call it.
__device__ __forceinline__ BatchTotals batch_totals(const BatchLengths& lengths) {
  const int lane = threadIdx.x % 32;
  BatchTotals t;
  bool uniform = true;
  int items0 = 0, n0 = 0;
  for (int base = 0; base < lengths.n_requests; base += 32) {
    const int b = base + lane;
    const bool exists = b < lengths.n_requests;
    const int items = exists ? lengths.items(b) : 0;
    const int n = items > 0 ? lengths.key_blocks(b) : 0;
    if (base == 0) {
      items0 = __shfl_sync(kAllLanes, items, 0);
      n0 = __shfl_sync(kAllLanes, n, 0);
    }
    t.items += items;
    t.key_blocks += items * n;
    t.max_blocks = max(t.max_blocks, n);
    if (exists && (items != items0 || n != n0)) uniform = false;
  }
  t.items = __reduce_add_sync(kAllLanes, t.items);
  t.key_blocks = __reduce_add_sync(kAllLanes, t.key_blocks);
  t.max_blocks = __reduce_max_sync(kAllLanes, t.max_blocks);
  t.uniform = __all_sync(kAllLanes, uniform);
  return t;
}

__device__ __forceinline__ Schedule make_schedule(const Args& args) {
  const BatchTotals totals = batch_totals(args.lengths);
  Schedule schedule(args.lengths, totals, gridDim.x, kSegmentOverhead);
  const int lane = threadIdx.x % 32;
  for (int first = 0; first < 128; first += 32) {  // every lane tries another quota
    const int full = schedule.candidate(first + lane);
    int n_full = 0;
    const uint32_t fitting = __ballot_sync(kAllLanes, schedule.fits(full, &n_full));
    if (fitting != 0) {
      const int best = __ffs(static_cast<int>(fitting)) - 1;
      schedule.choose(__shfl_sync(kAllLanes, full, best), __shfl_sync(kAllLanes, n_full, best));
      return schedule;
    }
  }
  schedule.choose_largest();
  return schedule;
}

class Producer {
 public:
  __device__ __forceinline__ Producer(const Args& args, Shared& shared)
      : args_(args), shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run(const Schedule& schedule) {
    const int block = blockIdx.x;
    Segment s;
    for (Schedule::Cursor c; schedule.next(block, c, s);) {
      hand_over(Job::kAttend, s);
      copy(s);
    }
    for (Schedule::Cursor c; schedule.next(block, c, s);) {
      if (s.n_parts > 1) hand_over(Job::kCombine, s);
    }
    hand_over(Job::kEnd, Segment{});
  }

 private:
  __device__ __forceinline__ void hand_over(Job::Kind kind, const Segment& s) {
    const int at = job_ & 1;
    if (lane_ == 0) {
      mbarrier_wait(&shared_.job_empty[at], (job_ >> 1 & 1) ^ 1);
      Job& job = shared_.job[at];
      job.kind = kind;
      job.segment = s;
      if (kind != Job::kEnd) {
        job.row_offset = args_.row_offset[s.request];
        job.n_nodes = args_.lengths.n_nodes[s.request];
        job.prefix_len = args_.lengths.prefix_len[s.request];
      }
      mbarrier_arrive(&shared_.job_full[at]);
    }
    __syncwarp();
    ++job_;
  }

  __device__ __forceinline__ void copy(const Segment& s) {
    const int row_offset = args_.row_offset[s.request];
    const int prefix_blocks = (args_.lengths.prefix_len[s.request] + kKeys - 1) / kKeys;
    const int32_t* table = args_.block_table + int64_t{s.request} * args_.max_blocks;
    const int end = s.first_block + s.n_blocks;
    // Lane l holds the pages of key blocks l, l + 1, ... ahead of their use.
    const auto load_pages = [&](int first) {
      return first + lane_ < min(prefix_blocks, end) ? __ldg(table + first + lane_) : 0;
    };
    int pages = 0, next_pages = load_pages(s.first_block);
    if (lane_ == 0) mbarrier_wait(&shared_.q_empty, (segment_ & 1) ^ 1);
    const int q_row = row_offset * args_.lengths.n_heads + s.item * kRows;
    for (int i = 0; i < s.n_blocks; ++i) {
      if (i % 32 == 0) {
        pages = next_pages;
        next_pages = load_pages(s.first_block + i + 32);
      }
      const int page = __shfl_sync(kAllLanes, pages, i % 32);
      const int key_block = s.first_block + i;
      if (lane_ != 0) continue;
      const bool in_prefix = key_block < prefix_blocks;
      copy_block(in_prefix ? &args_.pages_map : &args_.tail_map,
                 in_prefix ? page * kKeys : row_offset + (key_block - prefix_blocks) * kKeys,
                 block_ + i, i == 0 ? q_row : -1);
    }
    __syncwarp();
    block_ += s.n_blocks;
    ++segment_;
  }

  // Key block number `block` of this thread block, and with the first one the queries. Tiles go in
  // the order in which consumers need them and empty them: the owner's half of the columns first.
  __device__ __forceinline__ void copy_block(const CUtensorMap* map, int row, int block,
                                             int q_row) {
    const int slot = block & 1;
    const uint32_t parity = (block >> 1 & 1) ^ 1;
#pragma unroll 1
    for (int j = 0; j < kWidthTiles; ++j) {
      const int tile = j == 0 ? kRopeTile : (j - 1) ^ (slot * 4);
      if (j == 0) mbarrier_wait(&shared_.rope_empty[slot], parity);
      if (j % 2 == 1) mbarrier_wait(&shared_.pair_empty[slot][tile / 2], parity);
      if (q_row >= 0) {
        mbarrier_arrive_expect(&shared_.q_full[tile], kTileBytes);
        tma_load_2d(shared_.q[tile], &args_.q_map, tile * 64, q_row, &shared_.q_full[tile]);
      }
      mbarrier_arrive_expect(&shared_.k_full[slot][tile], kTileBytes);
      tma_load_2d(shared_.k[slot][tile], map, tile * 64, row, &shared_.k_full[slot][tile]);
    }
  }

  const Args& args_;
  Shared& shared_;
  const int lane_;
  int job_ = 0, block_ = 0, segment_ = 0;
};

}  // namespace kdt::cuda::sm90
