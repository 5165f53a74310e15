// Combining the parts of an item: every thread block that did a part sums a share of the columns
// over all parts, in the order of the parts.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/exp2.cuh"
#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

// The 256 consumer threads.
__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// The output rows of an item.
struct ItemRows {
  int64_t first;  // of all rows
  int n;          // that exist

  __device__ __forceinline__ ItemRows(const Args& args, const Job& job)
      : first(int64_t{job.row_offset} * args.lengths.n_heads + job.segment.item * kRows),
        n(job.n_nodes * args.lengths.n_heads - job.segment.item * kRows) {}
};

// Log-sum-exp of a row from its reference (base 2) and sum.
__device__ __forceinline__ float row_lse(float reference, float sum) {
  return sum == 0.0f ? kNegativeInfinity : (reference + log2f(sum)) * kLn2;
}

// The partial output of an item is 256 slices of 32 lanes, one after the other: slice = 64 quarter
// + 32 half + group holds rows 16 quarter .. + 15 and columns 256 half + 8 group .. + 7 as
// accumulator fragments. A part's share of the columns is some slices of every part.
inline constexpr int kSlices = 256, kSliceFloats = kPartialFloats / kSlices;

__device__ __forceinline__ float* slice_of(const Args& args, int slot, int slice, int lane) {
  return args.partial_out + int64_t{slot} * kPartialFloats + slice * kSliceFloats + lane * 4;
}

__device__ __forceinline__ void store_slice(const Args& args, const ItemRows& rows, int slice,
                                            int lane, float4 v) {
  const int row = slice / 64 * 16 + lane / 4, column = slice % 64 * 8 + lane % 4 * 2;
  const int64_t at = rows.first * kLatent + (row * kLatent + column);
  const float2 pairs[2] = {make_float2(v.x, v.y), make_float2(v.z, v.w)};
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (row + 8 * r >= rows.n) return;
    const auto [x, y] = pairs[r];
    if (args.out_type == OutType::kF32) {
      *reinterpret_cast<float2*>(static_cast<float*>(args.out) + at + 8 * r * kLatent) = pairs[r];
    } else {
      const uint32_t packed = args.out_type == OutType::kBF16 ? pack<Bf16>(x, y) : pack<Fp16>(x, y);
      *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args.out) + at + 8 * r * kLatent) =
          packed;
    }
  }
}

// The slices of the item that this thread block combines, and their rows.
struct Share {
  int first, last;   // slices
  int row0, n_rows;  // of all quarters that they touch

  __device__ __forceinline__ explicit Share(const Segment& s)
      : first(kSlices * s.part / s.n_parts),
        last(kSlices * (s.part + 1) / s.n_parts),
        row0(first / 64 * 16),
        n_rows((last - 1) / 64 * 16 + 16 - row0) {}

  // From one part to the next in the weights: odd, so that the parts of a row lie in different
  // banks.
  __device__ __forceinline__ int stride() const { return n_rows + 1; }
};

// What a combine needs of shared memory, in place of queries and keys.
struct CombineScratch {
  static constexpr int kCopies = 36;  // slices of parts that a warp has under way
  // Enough for all rows of a few parts and for 32 rows of the most.
  static constexpr int kWeights = kMaxParts * 33;
  int slots[kMaxParts];
  float weights[kWeights];  // [part][row]
  union {
    float2 stats[kWeights];                     // [part][row], until there are weights
    float4 sums[8][kConsumerThreads / 32][32];  // [slice][warp]
  };
};
// Follows in the place of the keys: slices of parts.
using PartSlices = float4[kConsumerThreads / 32][CombineScratch::kCopies][32];
static_assert(sizeof(CombineScratch) <= sizeof(Shared::q) &&
              sizeof(PartSlices) <= sizeof(Shared::k));

// The weight of every part in the rows of the share, and the rows' log-sum-exp. Eight threads a
// row, which copy the statistics that they read.
class PartWeights {
 public:
  __device__ __forceinline__ PartWeights(const Args& args, const Job& job, const Share& share,
                                         CombineScratch& scratch)
      : args_(args), job_(job), share_(share), scratch_(scratch) {}

  __device__ __forceinline__ void copy() const {
    for_rows([&](int row) {
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow) {
        const int slot = scratch_.slots[part];
        copy_async8(shared_address(&scratch_.stats[at(part, row)]),
                    args_.partial_stats + int64_t{slot} * kRows + share_.row0 + row);
      }
    });
    commit_copies();
  }

  __device__ __forceinline__ void compute() const {
    for_rows([&](int row) {
      float reference = kNegativeInfinity, sum = 0.0f;
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow)
        reference = fmaxf(reference, scratch_.stats[at(part, row)].x);
#pragma unroll
      for (int d = kThreadsPerRow / 2; d > 0; d /= 2)
        reference = fmaxf(reference, __shfl_xor_sync(kAllLanes, reference, d));
      const float base = reference == kNegativeInfinity ? 0.0f : reference;
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow) {
        const float2 stats = scratch_.stats[at(part, row)];
        sum += stats.y * exp2f(stats.x - base);
      }
#pragma unroll
      for (int d = kThreadsPerRow / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow)
        scratch_.weights[at(part, row)] = exp2f(scratch_.stats[at(part, row)].x - base) * inverse;
      if (first_part() == 0) store_lse(row, reference, sum);
    });
  }

 private:
  static constexpr int kThreadsPerRow = 8;

  template <typename Fn>
  __device__ __forceinline__ void for_rows(const Fn& fn) const {
#pragma unroll 1
    for (int row = threadIdx.x / kThreadsPerRow; row < share_.n_rows;
         row += kConsumerThreads / kThreadsPerRow)
      fn(row);
  }
  __device__ __forceinline__ static int first_part() {
    return threadIdx.x % kThreadsPerRow;
  }
  __device__ __forceinline__ int n_parts() const {
    return job_.segment.n_parts;
  }
  __device__ __forceinline__ int at(int part, int row) const {
    return part * share_.stride() + row;
  }

  // Written by the part whose share begins or contains the first slice of the row's quarter.
  __device__ __forceinline__ void store_lse(int row, float reference, float sum) const {
    const int slice = (share_.row0 + row) / 16 * 64;
    const ItemRows rows(args_, job_);
    if (slice >= share_.first && slice < share_.last && share_.row0 + row < rows.n)
      args_.lse[rows.first + share_.row0 + row] = row_lse(reference, sum);
  }

  const Args& args_;
  const Job& job_;
  const Share& share_;
  CombineScratch& scratch_;
};

// Waits until all parts are stored, and resets the counters once all parts have seen that.
__device__ __forceinline__ void wait_for_parts(const Args& args, const Segment& s) {
  if (threadIdx.x == 0) {
    uint32_t* stored = args.counters + 2 * s.owner;
    const auto n_parts = static_cast<uint32_t>(s.n_parts);
    uint32_t n;
    do {
      asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(n) : "l"(stored) : "memory");
    } while (n != n_parts);
    if (atomicAdd(stored + 1, 1u) == n_parts - 1) {
      stored[0] = 0;
      stored[1] = 0;
    }
  }
  consumers_sync();
}

__device__ __forceinline__ void combine(const Args& args, const Job& job, Shared& shared) {
  auto& scratch = *reinterpret_cast<CombineScratch*>(shared.q);
  auto& slices = *reinterpret_cast<PartSlices*>(shared.k);
  const Segment& s = job.segment;
  const Share share(s);
  const ItemRows rows(args, job);
  if (threadIdx.x < s.n_parts) scratch.slots[threadIdx.x] = s.slot(threadIdx.x);
  wait_for_parts(args, s);
  if (share.first == share.last) return;

  // A warp does all parts of every eighth slice; where shares are small because parts are many, an
  // eighth of the parts of every slice.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool by_parts = share.last - share.first < 8;
  const int begin = by_parts ? s.n_parts * warp / 8 : 0;
  const int end = by_parts ? s.n_parts * (warp + 1) / 8 : s.n_parts;
  const int step = by_parts ? 1 : 8, round = CombineScratch::kCopies / max(end - begin, 1) * step;
  float4(&copies)[CombineScratch::kCopies][32] = slices[warp];
  // A thread copies just what it adds.
  const auto copy = [&](int first) {
    int n = 0;
#pragma unroll 1
    for (int slice = first; slice < min(share.last, first + round); slice += step) {
#pragma unroll 4
      for (int part = begin; part < end; ++part) {
        copy_async16(shared_address(&copies[n++][lane]),
                     slice_of(args, scratch.slots[part], slice, lane), true);
      }
    }
    commit_copies();
  };
  const auto add = [&](int first) {
    int n = 0;
#pragma unroll 1
    for (int slice = first; slice < min(share.last, first + round); slice += step) {
      const float* weight = scratch.weights + slice / 64 * 16 + lane / 4 - share.row0;
      float4 sum = {};
#pragma unroll 4
      for (int part = begin; part < end; ++part) {
        const float4 v = copies[n++][lane];
        const float a = weight[part * share.stride()], b = weight[part * share.stride() + 8];
        sum = make_float4(sum.x + a * v.x, sum.y + a * v.y, sum.z + b * v.z, sum.w + b * v.w);
      }
      if (by_parts)
        scratch.sums[slice - share.first][warp][lane] = sum;
      else
        store_slice(args, rows, slice, lane, sum);
    }
  };

  int first = share.first + (by_parts ? 0 : warp);
  const PartWeights part_weights(args, job, share, scratch);
  part_weights.copy();
  copy(first);
  wait_for_copies<1>();
  part_weights.compute();
  consumers_sync();
#pragma unroll 1
  while (first < share.last) {
    wait_for_copies<0>();
    add(first);
    first += round;
    copy(first);
  }
  consumers_sync();
  if (by_parts) {
    if (warp < share.last - share.first) {
      float4 total = {};
      for (int i = 0; i < kConsumerThreads / 32; ++i) {
        const float4 v = scratch.sums[warp][i][lane];
        total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
      }
      store_slice(args, rows, share.first + warp, lane, total);
    }
    consumers_sync();  // the sums may be written again
  }
}

}  // namespace kdt::cuda::sm90
