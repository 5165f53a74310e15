// The producer warp of the wgmma attention kernel: finds the block's segments, hands them to the
// consumers as jobs and copies their queries and keys into shared memory.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_plan.cuh"

namespace kdt::cuda::sm90 {

// The L2 is asked for a page so many key blocks before it is copied, in so many shares at most.
inline constexpr int kBlocksAhead = 2, kMostShares = 4;

// The thread block's plan, 16 bytes a lane.
__device__ __forceinline__ uint4 load_plan(const Args& args) {
  const int lane = threadIdx.x % 32;
  return lane < kPlanWords ? reinterpret_cast<const uint4*>(args.plans + blockIdx.x)[lane]
                           : uint4{};
}

class Producer {
 public:
  __device__ __forceinline__ Producer(const Args& args, Shared& shared)
      : args_(args), shared_(shared), lane_(threadIdx.x % 32) {}

  // The plan as load_plan() returns it.
  __device__ __forceinline__ void run(uint4 words) {
    const Plan& plan = shared_.plan;
    bool attends = start(words);
    Job job = plan.first;
    int pages = plan.pages[lane_];
    const Schedule schedule(args_.lengths, plan.totals, gridDim.x, plan.gangs);
    Schedule::Cursor cursor = plan.cursor;
#pragma unroll 1
    while (job.kind != Job::kEnd) {  // all segments, then those to combine once more
      if (attends) copy(job, pages);
      attends = false;
      if (!next_segment(args_, schedule, cursor, job)) {
        job.kind = job.kind == Job::kAttend ? Job::kCombine : Job::kEnd;
        cursor = {};
        if (job.kind == Job::kEnd) hand_over(job);
        continue;
      }
      if (job.kind == Job::kAttend ? job.segment.n_blocks == 0 : !job.segment.is_combined())
        continue;
      // Pages are asked for before the job is handed over: all loads are on their way together.
      pages = load_pages(args_, job, job.segment.first_block);
      hand_over(job);
      attends = job.kind == Job::kAttend;
    }
    if (lane_ == 0) args_.plans[blockIdx.x].first.launch = job.launch + 1;
  }

 private:
  // Hands over the segment that the plan has, copies its first key block and returns true, if there
  // is one. All else of the plan can wait.
  __device__ __forceinline__ bool start(uint4 words) {
    if (lane_ < kPlanWords) reinterpret_cast<uint4*>(&shared_.plan)[lane_] = words;
    if (lane_ < sizeof(Job) / 16) reinterpret_cast<uint4*>(&shared_.job[0])[lane_] = words;
    __syncwarp();
    if (shared_.plan.first.kind != Job::kAttend) return false;
    if (lane_ == 0) mbarrier_arrive(&shared_.job_full[0]);
    ++job_;
    constexpr int kLane = offsetof(Plan, in_prefix) / 16;
    static_assert(offsetof(Plan, first) == 0 && offsetof(Plan, in_prefix) % 16 == 0);
    copy_start(uniform_from(words.x, kLane) ? &args_.pages_map : &args_.tail_map,
               uniform_from(words.y, kLane), uniform_from(words.z, kLane));
    return true;
  }

  __device__ __forceinline__ void hand_over(const Job& job) {
    const int at = job_ & 1;
    if (lane_ == 0) {
      mbarrier_wait(&shared_.job_empty[at], (job_ >> 1 & 1) ^ 1);
      shared_.job[at] = job;
      mbarrier_arrive(&shared_.job_full[at]);
    }
    __syncwarp();
    ++job_;
  }

  __device__ __forceinline__ void copy(const Job& job, int next_pages) {
    const Segment& s = job.segment;
    const int n_prefix_blocks = prefix_blocks(job);
    int pages = 0;
    const int q_row = uniform(query_row(args_, job));
    const int n_blocks = uniform(s.n_blocks);
    const int items = args_.lengths.items_of(job.n_nodes);
    if (segment_ > 0 && lane_ < kWidthTiles) tma_prefetch_2d(&args_.q_map, lane_ * 64, q_row);
#pragma unroll 1
    for (int i = 0; i < n_blocks; ++i) {
      if (i % 32 == 0) {
        pages = next_pages;
        next_pages = load_pages(args_, job, s.first_block + i + 32);
      }
      const int page = __shfl_sync(kAllLanes, pages, i % 32);
      const int key_block = s.first_block + i;
      const bool in_prefix = uniform(key_block < n_prefix_blocks) != 0;
      const CUtensorMap* map = in_prefix ? &args_.pages_map : &args_.tail_map;
      const int row = uniform(key_row(job, in_prefix, key_block - n_prefix_blocks, page));
      const int bytes = i == 0 ? 2 * kTileBytes : kTileBytes;  // of a tile of keys, and of queries
      if (block_ > 0) {                                        // start() has copied the first one
        if (uniform(block_ & 1) == 0)
          copy_block<0>(map, row, bytes);
        else
          copy_block<1>(map, row, bytes);
        if (i == 0) copy_queries(q_row);
      }
      const int next = i % 32 + kBlocksAhead;
      const int next_page = __shfl_sync(kAllLanes, next < 32 ? pages : next_pages, next % 32);
      if (items > 1 && i + kBlocksAhead < min(n_blocks, n_prefix_blocks - s.first_block))
        prefetch_share(s, items, next_page);
      ++block_;
    }
    ++segment_;
  }

  // Asks the L2 for a share of a page that is copied later: those who read the same keys ask for
  // different ones, of four at most, since one of them may be late.
  __device__ __forceinline__ void prefetch_share(const Segment& s, int items, int page) {
    const int n = min(s.n_readers(items), kMostShares), bytes = quotient(kPageBytes, n);
    prefetch_l2(
        static_cast<const char*>(args_.pages) + int64_t{page} * kPageBytes + s.reader() % n * bytes,
        bytes);
  }

  // The first key block and its queries. A loop, since unrolled code is slow the first time.
  __device__ __forceinline__ void copy_start(const CUtensorMap* map, int row, int q_row) {
#pragma unroll 1
    for (int place = 0; place < kWidthTiles; ++place) {
      const int column = tile_at(0, place) * 64;
      tma_load_2d(shared_.k[0][place], map, column, row, &shared_.k_full[0][place], 2 * kTileBytes);
      copy_query(0, place, q_row);
    }
  }

  // Of a later segment: its first keys are copied while the last products still need the queries of
  // the one before.
  __device__ __forceinline__ void copy_queries(int row) {
    mbarrier_wait(&shared_.q_empty, (segment_ & 1) ^ 1);
    const int slot = uniform(block_ & 1);
#pragma unroll 1
    for (int place = 0; place < kWidthTiles; ++place) copy_query(slot, place, row);
  }

  // To the barrier of the keys that it is multiplied with.
  __device__ __forceinline__ void copy_query(int slot, int place, int row) {
    const int tile = tile_at(slot, place);
    tma_load_2d_announced(shared_.q[tile], &args_.q_map, tile * 64, row,
                          &shared_.k_full[slot][place]);
  }

  // The next key block, to slot kSlot; of each tile `bytes` arrive.
  template <int kSlot>
  __device__ __forceinline__ void copy_block(const CUtensorMap* map, int row, int bytes) {
    const uint32_t parity = uniform((block_ >> 1 & 1) ^ 1);
#pragma unroll
    for (int place = 0; place < kWidthTiles; ++place) {
      if (place == 0) mbarrier_wait(&shared_.rope_empty[kSlot], parity);
      if (place % 2 == 1) mbarrier_wait(&shared_.pair_empty[kSlot][place / 2], parity);
      tma_load_2d(shared_.k[kSlot][place], map, tile_at(kSlot, place) * 64, row,
                  &shared_.k_full[kSlot][place], bytes);
    }
  }

  const Args& args_;
  Shared& shared_;
  const int lane_;
  int job_ = 0, block_ = 0, segment_ = 0;  // numbers of the next ones
};

}  // namespace kdt::cuda::sm90
