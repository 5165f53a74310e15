// What the wgmma attention kernel is launched with, and its shared memory.
#pragma once

#include <cuda.h>

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
inline constexpr int kConsumerThreads = 256;             // two warpgroups
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

struct Args {
  CUtensorMap q_map;      // [R * H, 576]
  CUtensorMap pages_map;  // [n_pages * 64, 576]
  CUtensorMap tail_map;   // [R, 576]
  BatchLengths lengths;
  const void *q, *pages;
  int64_t n_query_rows, n_pages;
  const int32_t* row_offset;
  const int32_t* block_table;
  const uint64_t* ancestors;
  void* out;
  float* lse;
  uint16_t* partial_out;  // [slots, 64 * 512] fp16, in slices of accumulator fragments
  float4* partial_stats;  // [slots, 64]: exponent reference and sum of a row, the inverses of the
                          // powers of two of its halves
  // [blocks, 2]: parts stored, sharers that saw them all; zero between launches
  uint32_t* counters;
  int32_t max_blocks, n_words;
  OutType out_type;
  float scale_log2;  // scale * log2(e)
};

// A job of the consumers, as the producer hands it over.
struct Job {
  enum Kind : int32_t { kAttend, kCombine, kEnd };
  Segment segment;
  int32_t kind;
  int32_t row_offset, n_nodes, prefix_len;
};

// The value of lane 0, which the compiler then knows to be the same in all lanes.
__device__ __forceinline__ int uniform(int value) {
  return __shfl_sync(kAllLanes, value, 0);
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
  // A segment's queries arrive on the barriers of its first key block; the warpgroup of that block
  // tells the other by q_full.
  MBarrier q_full, q_empty;
  MBarrier k_full[2][kWidthTiles];
  // The rope tile of a slot and its pairs of latent tiles are emptied, and filled again, one by
  // one.
  MBarrier pair_empty[2][4], rope_empty[2];
  MBarrier p_full[2][kChunks];  // by the warpgroup that made it
  MBarrier job_full[2], job_empty[2];
  Job job[2];
  BatchTotals totals;  // the producer's, across the start's __syncthreads
  Gangs gangs;
  float reference[kRows];  // exponent references of the rows of p
  union {                  // by the warpgroup that made p: whether references moved, by its warps
    uint8_t warp[4];
    uint32_t any;
  } moved[2];
  int not_finite[2];  // by the warpgroup that made p: whether scores are not finite
  // By segment parity: exponent references of its rows, and sums by warpgroup.
  float last_reference[2][kRows], sum[2][2][kRows];
  uint8_t exponent[2][2][kRows];  // and exponents of stored parts
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
