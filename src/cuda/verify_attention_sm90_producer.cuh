// The producer warp of the wgmma attention kernel: plans the block's segments, hands them to the
// consumers as jobs and copies their queries and keys into shared memory.
#pragma once

#include "cuda/device/prefetch.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_mask.cuh"

namespace kdt::cuda::sm90 {

// The L2 is asked for a page so many key blocks before it is copied, in so many shares at most.
inline constexpr int kBlocksAhead = 2, kMostShares = 4;

// Totals of the batch; all lanes call it.
__device__ __forceinline__ BatchTotals batch_totals(const BatchLengths& lengths) {
  BatchTotals t;
#pragma unroll 1
  for (int b = threadIdx.x % 32; b < lengths.n_requests; b += 32)
    t.add(lengths.items(b), lengths.key_blocks(b));
  t.items = __reduce_add_sync(kAllLanes, t.items);
  t.most_items = __reduce_max_sync(kAllLanes, t.most_items);
  t.least_items = __reduce_min_sync(kAllLanes, t.least_items);
  t.most_blocks = __reduce_max_sync(kAllLanes, t.most_blocks);
  t.least_blocks = __reduce_min_sync(kAllLanes, t.least_blocks);
  return t;
}

// The line by request of gangs of this lane's size.
__device__ __forceinline__ int line_by_request(const BatchLengths& lengths, int size) {
  const int lane = threadIdx.x % 32;
  int line = 0;
#pragma unroll 1
  for (int base = 0; base < lengths.n_requests; base += 32) {
    const int b = base + lane;
    const int items = b < lengths.n_requests ? lengths.items(b) : 0;
    const int blocks = b < lengths.n_requests ? lengths.key_blocks(b) : 0;
#pragma unroll 2
    for (int i = kFirstSmall; i < kCandidates; ++i) {
      const int tried = max(__shfl_sync(kAllLanes, size, i), 1);
      const int all = __reduce_add_sync(kAllLanes, Schedule::line_of(items, blocks, tried));
      if (lane == i) line += all;
    }
  }
  return line;
}

// How the batch is dealt out; all lanes call it.
__device__ __forceinline__ Gangs choose_gangs(const BatchLengths& lengths,
                                              const BatchTotals& totals) {
  const Schedule schedule(lengths, totals, gridDim.x);
  const int lane = threadIdx.x % 32, size = schedule.candidate(lane);  // every lane tries another
  Gangs gangs = schedule.gangs(size);
  if (!totals.uniform()) {
    const int line = line_by_request(lengths, size);
    if (lane >= kFirstSmall) Schedule::try_by_request(line, gangs);
  }
  Schedule::add_reads(__shfl_sync(kAllLanes, gangs.n, kFirstOfItems), gangs);
  const int least = __reduce_min_sync(kAllLanes, gangs.cost);
  const int best = __ffs(__ballot_sync(kAllLanes, gangs.cost == least)) - 1;
  for (int* field : {&gangs.size, &gangs.n, &gangs.overhead, &gangs.quota, &gangs.last_blocks,
                     &gangs.by_request, &gangs.cost})
    *field = __shfl_sync(kAllLanes, *field, best);
  return gangs;
}

class Producer {
 public:
  __device__ __forceinline__ Producer(const Args& args, Shared& shared)
      : args_(args), shared_(shared), lane_(threadIdx.x % 32) {}

  __device__ __forceinline__ void run(const Schedule& schedule) {
    Job job;
    job.kind = Job::kAttend;
    Schedule::Cursor cursor;
#pragma unroll 1
    while (job.kind != Job::kEnd) {  // all segments, then those to combine once more
      if (!next(schedule, cursor, job)) {
        job.kind = job.kind == Job::kAttend ? Job::kCombine : Job::kEnd;
        cursor = {};
        if (job.kind == Job::kEnd) hand_over(job);
        continue;
      }
      if (job.kind == Job::kAttend ? job.segment.n_blocks == 0 : !job.segment.is_combined())
        continue;
      // Pages are asked for before the job is handed over: all loads are on their way together.
      const int pages = load_pages(job, job.segment.first_block);
      hand_over(job);
      if (job.kind == Job::kAttend) copy(job, pages);
    }
  }

 private:
  // This thread block's next segment and its request.
  __device__ __forceinline__ bool next(const Schedule& schedule, Schedule::Cursor& c, Job& job) {
    Segment& s = job.segment;
    if (!schedule.next(blockIdx.x, c, s)) return false;
    job.row_offset = args_.row_offset[s.request];
    job.n_nodes = args_.lengths.n_nodes[s.request];
    job.prefix_len = args_.lengths.prefix_len[s.request];
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

  // Lane l's page is that of key block first + l.
  __device__ __forceinline__ int load_pages(const Job& job, int first) const {
    const Segment& s = job.segment;
    const int end = min(args_.max_blocks, s.first_block + s.n_blocks);  // not all are of the prefix
    const int32_t* table = args_.block_table + int64_t{s.request} * args_.max_blocks;
    return first + lane_ < end ? __ldg(table + first + lane_) : 0;
  }

  __device__ __forceinline__ void copy(const Job& job, int next_pages) {
    const Segment& s = job.segment;
    const int n_prefix_blocks = prefix_blocks(job);
    int pages = 0;
    const int q_row = uniform(job.row_offset * args_.lengths.n_heads + s.item * kRows);
    const int n_blocks = uniform(s.n_blocks);
    const int items = args_.lengths.items_of(job.n_nodes);
    if (segment_ > 0 && lane_ < kWidthTiles) tma_prefetch_2d(&args_.q_map, lane_ * 64, q_row);
#pragma unroll 1
    for (int i = 0; i < n_blocks; ++i) {
      if (i % 32 == 0) {
        pages = next_pages;
        next_pages = load_pages(job, s.first_block + i + 32);
      }
      const int page = __shfl_sync(kAllLanes, pages, i % 32);
      const int key_block = s.first_block + i;
      const bool in_prefix = uniform(key_block < n_prefix_blocks) != 0;
      const CUtensorMap* map = in_prefix ? &args_.pages_map : &args_.tail_map;
      const int row = uniform(in_prefix ? page * kKeys
                                        : job.row_offset + (key_block - n_prefix_blocks) * kKeys);
      const int bytes = i == 0 ? 2 * kTileBytes : kTileBytes;  // of a tile of keys, and of queries
      if (block_ == 0)
        copy_start(map, row, q_row);
      else if (uniform(block_ & 1) == 0)
        copy_block<0>(map, row, bytes);
      else
        copy_block<1>(map, row, bytes);
      if (i == 0 && segment_ > 0) copy_queries(q_row);
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
