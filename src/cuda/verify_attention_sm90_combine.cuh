// Combining the parts of an item (Segment::is_combined()): each of its sharers, those that did a
// part and perhaps some that had none to do, sums a share of the columns over all parts, in the
// order of the parts.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/exp2.cuh"
#include "cuda/verify_attention_sm90_parts.cuh"

namespace kdt::cuda::sm90 {

// The slices of the item that this thread block combines, and their rows.
struct Share {
  int first, last;   // slices
  int row0, n_rows;  // of all quarters that they touch

  __device__ __forceinline__ explicit Share(const Segment& s)
      : first(kSlices * s.part / s.n_sharers),
        last(kSlices * (s.part + 1) / s.n_sharers),
        row0(first / 32 * 16),
        n_rows((last - 1) / 32 * 16 + 16 - row0) {}
};

// What a combine needs of shared memory, in place of the queries: one row of all parts of a share,
// its statistics, then its weights. A share has 32 rows at most, 16 where parts are as many as
// slices.
struct CombineScratch {
  static constexpr int kEntries = kSlices * 32;
  float4 entries[kEntries];  // [part][row]: partial_stats, then the weights of both halves
};
// And in place of the keys, what each warp has of the parts: slices under way and, where warps
// share slices, their sums in place of those that are summed.
union CombineSlices {
  static constexpr int kWarps = kConsumerThreads / 32;
  static constexpr int kMost = 8;          // slices of a warp
  static constexpr int kSharedParts = 16;  // as many parts or more: warps share all slices
  uint4 copies[32 + 1][kLanes];            // [slice][part], see WarpShare; one more is read
  SliceSums sums[kMost][kLanes];
};
static_assert(sizeof(CombineScratch) <= sizeof(Shared::q) &&
              CombineSlices::kWarps * sizeof(CombineSlices) <= sizeof(Shared::k));

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
        const int slot = job_.segment.slot(part);
        copy_async16(shared_address(&scratch_.entries[at(part, row)]),
                     args_.partial_stats + int64_t{slot} * kRows + share_.row0 + row, true);
      }
    });
    commit_copies();
  }

  __device__ __forceinline__ void compute() const {
    for_rows([&](int row) {
      float reference = kNegativeInfinity, sum = 0.0f;
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow)
        reference = fmaxf(reference, scratch_.entries[at(part, row)].x);
#pragma unroll
      for (int d = kThreadsPerRow / 2; d > 0; d /= 2)
        reference = fmaxf(reference, __shfl_xor_sync(kAllLanes, reference, d));
      const float base = shift(reference);
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow) {
        const float4 stats = scratch_.entries[at(part, row)];
        sum += stats.y * exp2_estimate(stats.x - base);
      }
#pragma unroll
      for (int d = kThreadsPerRow / 2; d > 0; d /= 2) sum += __shfl_xor_sync(kAllLanes, sum, d);
      const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
#pragma unroll 1
      for (int part = first_part(); part < n_parts(); part += kThreadsPerRow) {
        float4& entry = scratch_.entries[at(part, row)];
        const float weight = exp2_estimate(entry.x - base) * inverse;
        entry.x = weight * entry.z;
        entry.y = weight * entry.w;
      }
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
    return part * share_.n_rows + row;
  }

  // Written by the sharer whose share begins or contains the first slice of the row's quarter.
  __device__ __forceinline__ void store_lse(int row, float reference, float sum) const {
    const int slice = (share_.row0 + row) / 16 * 32;
    const ItemRows rows(args_, job_);
    if (slice >= share_.first && slice < share_.last && share_.row0 + row < rows.n)
      args_.lse[rows.first + share_.row0 + row] = row_lse(reference, sum);
  }

  const Args& args_;
  const Job& job_;
  const Share& share_;
  CombineScratch& scratch_;
};

// What a warp does of a share: all parts of an eighth of its slices or, where parts are many and
// slices few, an eighth of the parts of every slice. At most 32 slices of parts.
struct WarpShare {
  bool by_parts;
  int slice, n_slices;
  int part, n_parts;

  __device__ __forceinline__ WarpShare(const Share& share, int all_parts, int warp) {
    constexpr int kWarps = CombineSlices::kWarps;
    by_parts = all_parts >= CombineSlices::kSharedParts;
    const int all_slices = share.last - share.first;
    const int all = by_parts ? all_parts : all_slices;
    const int first = all * warp / kWarps, n = all * (warp + 1) / kWarps - first;
    slice = share.first + (by_parts ? 0 : first);
    n_slices = by_parts ? all_slices : n;
    part = by_parts ? first : 0;
    n_parts = by_parts ? n : all_parts;
  }
};

// Asks for the warp's slices of its parts. A thread copies just what it adds.
__device__ __forceinline__ void copy_slices(const Args& args, const Segment& s,
                                            const WarpShare& mine, int lane,
                                            CombineSlices& slices) {
#pragma unroll 1
  for (int i = 0; i < mine.n_parts; ++i) {
    const uint4* from = slice_of(args, s.slot(mine.part + i), mine.slice, lane);
    uint4* to = &slices.copies[i][lane];
#pragma unroll
    for (int k = 0; k < CombineSlices::kMost; ++k) {
      if (k < mine.n_slices) copy_async16(shared_address(to), from + k * kLanes, true);
      to += mine.n_parts * kLanes;
    }
  }
  commit_copies();
}

// The sum of the share. Start and end of a thread block are not repeated: what counts here is how
// few instructions there are, and that none waits for the one before.
__device__ __forceinline__ void sum_share(const Args& args, const Job& job, Shared& shared) {
  auto& scratch = *reinterpret_cast<CombineScratch*>(shared.q);
  auto* slices = reinterpret_cast<CombineSlices*>(shared.k);  // of the warps
  const Segment& s = job.segment;
  const Share share(s);
  if (share.first == share.last) return;
  const ItemRows rows(args, job);
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const WarpShare mine(share, s.n_parts, warp);

  const PartWeights part_weights(args, job, share, scratch);
  part_weights.copy();
  copy_slices(args, s, mine, lane, slices[warp]);
  wait_for_copies<1>();
  part_weights.compute();
  consumers_sync();
  wait_for_copies<0>();

  const uint4* copies = &slices[warp].copies[0][lane];
  uint4 next = *copies;
#pragma unroll 1
  for (int k = 0; k < mine.n_slices; ++k) {
    const int slice = mine.slice + k;
    const float* weight =
        &scratch.entries[mine.part * share.n_rows + slice / 32 * 16 + lane / 4 - share.row0].x +
        slice / 16 % 2;
    SliceSums sums;
#pragma unroll 1
    for (int i = 0; i < mine.n_parts; ++i) {
      const uint4 part = next;
      const float weight0 = weight[0], weight8 = weight[8 * 4];
      copies += kLanes;
      next = *copies;
      weight += share.n_rows * 4;
      add_slice(sums.x, part, weight0, weight8);
    }
    if (mine.by_parts) {
      __syncwarp();  // all lanes have read what the sums overwrite
      slices[warp].sums[k][lane] = sums;
    } else {
      store_slice(args, rows, slice, lane, sums);
    }
  }
  if (!mine.by_parts) return;
  consumers_sync();
  if (warp < mine.n_slices) {
    SliceSums total;
#pragma unroll 2
    for (int i = 0; i < CombineSlices::kWarps; ++i) {
      const SliceSums& part = slices[i].sums[warp][lane];
#pragma unroll
      for (int e = 0; e < 8; ++e) total.x[e] += part.x[e];
    }
    store_slice(args, rows, mine.slice + warp, lane, total);
  }
}

__device__ __forceinline__ void combine(const Args& args, const Job& job, Shared& shared) {
  const Segment& s = job.segment;
  uint32_t* counters = args.counters + 2 * s.owner;
  if (threadIdx.x == 0) wait_for_parts(counters, s.n_parts);
  consumers_sync();
  int n_before = -1;  // sharers that saw all parts before; known by the time the sums are done
  if (threadIdx.x == 0) n_before = static_cast<int>(atomicAdd(counters + 1, 1u));
  sum_share(args, job, shared);
  if (n_before == s.n_sharers - 1) {  // the last one resets both
    counters[0] = 0;
    counters[1] = 0;
  }
}

}  // namespace kdt::cuda::sm90
