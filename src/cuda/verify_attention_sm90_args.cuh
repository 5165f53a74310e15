// What the wgmma attention kernel is launched with, what a plan holds, and the kernel's shared
// memory.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <cstdint>

#include "cuda/device/lanes.cuh"
#include "cuda/device/mbarrier.cuh"
#include "cuda/device/wgmma.cuh"
#include "cuda/verify_attention_sm90_schedule.cuh"

namespace kdt::cuda::sm90 {

using namespace device;

inline constexpr float kNegativeInfinity = -__builtin_huge_valf();

inline constexpr int kLatent = 512;
inline constexpr int kWidth = 576;               // latent + rope
inline constexpr int kWidthTiles = kWidth / 64;  // the last one is the rope part
inline constexpr int kRopeTile = kWidthTiles - 1;
inline constexpr int kConsumerThreads = 256;  // two warpgroups
inline constexpr int kConsumerWarps = kConsumerThreads / 32;
inline constexpr int kThreads = kConsumerThreads + 128;  // and the producer's
// Registers of a thread. The kernel starts with as many for every thread as the multiprocessor has,
// in units of 8: what one side takes the other must have given back, or taking never ends.
inline constexpr int kConsumerRegisters = 216, kProducerRegisters = 72;
static_assert(kConsumerThreads * kConsumerRegisters + 128 * kProducerRegisters <=
              kThreads * (65536 / kThreads / 8 * 8));
// Probabilities are handed over in chunks of columns, each as soon as it is ready.
inline constexpr int kChunks = 2, kChunkSteps = kKeys / 16 / kChunks;
inline constexpr int kPartialElements = kRows * kLatent;
inline constexpr int kPageBytes = kKeys * kWidth * 2;
inline constexpr int kMaxBlocks = 134;  // thread blocks of a launch

enum class OutType : int32_t { kF32, kBF16, kF16 };

// A job of the consumers, as the producer hands it over.
struct alignas(16) Job {
  enum Kind : int32_t { kAttend, kCombine, kEnd };
  Segment segment;
  int32_t kind;
  int32_t row_offset, n_nodes, prefix_len;
  uint32_t launch;  // number of this launch since the batch was planned, from 1
};

// What a thread block has to know of a batch before it starts. It is read 16 bytes a lane.
struct alignas(16) Plan {
  Job first;  // its first segment, with the next launch's number; kCombine where it attends to none
  // Where that segment's first keys and queries are: rows of the prefix's pages or of the tail.
  int32_t in_prefix, key_row, query_row;
  int32_t pages[32];        // of its first key blocks
  Schedule::Cursor cursor;  // behind it
  BatchTotals totals;
  Gangs gangs;
};
inline constexpr int kPlanWords = sizeof(Plan) / 16;  // one a lane
static_assert(kPlanWords <= 32);

__device__ __forceinline__ int prefix_blocks(const Job& job) {
  return ceil_div(job.prefix_len, kKeys);
}

// Of a row of a part: exponent reference, the warpgroups' sums, and the exponents by which its
// halves are scaled (store_part()).
struct alignas(16) RowStats {
  float reference, sums[2];
  uint16_t exponents[2];
};

// What a plan is made of, and where it is kept.
struct PlanArgs {
  BatchLengths lengths;
  const int32_t* row_offset;
  const int32_t* block_table;
  int32_t max_blocks;
  Plan* plans;            // [blocks]
  uint32_t* last_launch;  // [slots]: number of the launch that stored the part last, 0 before that
};

inline constexpr size_t kPartBytes = kPartialElements * sizeof(uint16_t) + kRows * sizeof(RowStats);

struct Args : PlanArgs {
  CUtensorMap q_map;      // [R * H, 576]
  CUtensorMap pages_map;  // [n_pages * 64, 576]
  CUtensorMap tail_map;   // [R, 576]
  const void *q, *pages;
  int64_t n_query_rows;
  const uint64_t* ancestors;
  void* out;
  float* lse;
  uint16_t* partial_out;    // [slots, 64 * 512] fp16, in slices of accumulator fragments
  RowStats* partial_stats;  // [slots, 64]
  int32_t n_words;
  OutType out_type;
  float scale_log2;  // scale * log2(e)
};

// The value of a lane, which the compiler then knows to be the same in all lanes.
__device__ __forceinline__ int uniform_from(int value, int lane) {
  return __shfl_sync(kAllLanes, value, lane);
}
__device__ __forceinline__ int uniform(int value) {
  return uniform_from(value, 0);
}

// The tiles of a key block in the order in which a slot has them, consumers need them and the
// producer copies them: the rope tile, the values of the warpgroup that owns the slot, those of the
// other.
inline constexpr int kOwnValues = 1, kOtherValues = 5;

__device__ __forceinline__ int tile_at(int slot, int place) {
  return place == 0 ? kRopeTile : (place - 1) ^ (4 * slot);
}

struct Shared {
  uint8_t q[kWidthTiles][kTileBytes];
  uint8_t k[2][kWidthTiles][kTileBytes];  // by place
  uint8_t p[kTileBytes];
  // Barriers, by their arrivals: init_barriers() relies on the order. Of one: a segment's queries
  // arrive on those of its first key block.
  MBarrier k_full[2][kWidthTiles], job_full[2];
  // Of 4, a warpgroup's warps. The rope tile of a slot and its pairs of latent tiles are emptied,
  // and filled again, one by one. p_full is by the warpgroup that made it; by q_full the warpgroup
  // of a segment's first key block tells the other that the queries are there.
  MBarrier pair_empty[2][4], rope_empty[2], p_full[2][kChunks], q_full;
  // Of 8.
  MBarrier q_empty, job_empty[2], slices_full;
  Job job[2];
  Plan plan;               // the producer's
  float reference[kRows];  // exponent references of the rows of p
  union {                  // by the warpgroup that made p: whether references moved, by its warps
    uint8_t warp[4];
    uint32_t any;
  } moved[2];
  int not_finite[2];       // by the warpgroup that made p: whether scores are not finite
  float sum[2][2][kRows];  // of a segment's rows, by its parity and by warpgroup
};
static_assert(sizeof(Shared) <= 227 * 1024);

// Job number n, once the producer has handed it over.
__device__ __forceinline__ Job next_job(Shared& shared, int n) {
  mbarrier_wait(&shared.job_full[n & 1], n >> 1 & 1);
  Job job;
  const auto* from = reinterpret_cast<const int*>(&shared.job[n & 1]);
  auto* to = reinterpret_cast<int*>(&job);
#pragma unroll
  for (int i = 0; i < static_cast<int>(sizeof(Job) / sizeof(int)); ++i) to[i] = uniform(from[i]);
  if (threadIdx.x % 32 == 0) mbarrier_arrive(&shared.job_empty[n & 1]);
  return job;
}

}  // namespace kdt::cuda::sm90
