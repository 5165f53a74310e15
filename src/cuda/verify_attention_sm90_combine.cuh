// Combining the parts of an item (Segment::is_combined()): each of its sharers, those that did a
// part and perhaps some that had none to do, sums a share of the columns over all parts, in an
// order that only the shape decides.
//
// Start and end of a thread block are not repeated: what counts here is how few instructions there
// are, and that none waits for the one before.
#pragma once

#include "cuda/device/copy.cuh"
#include "cuda/device/exp2.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_parts.cuh"

namespace kdt::cuda::sm90 {

// The slices of the item that this thread block combines, and their rows, 16 or 32: all of the
// quarters that they touch.
struct Share {
  int first, n_slices;
  int row0, n_rows;

  __device__ __forceinline__ explicit Share(const Segment& s)
      : first(quotient(kSlices * s.part, s.n_sharers)),
        n_slices(quotient(kSlices * (s.part + 1), s.n_sharers) - first),
        row0(first / 32 * 16),
        n_rows((first + n_slices - 1) / 32 * 16 + 16 - row0) {}
};

// What a combine needs of shared memory, in place of queries and keys. Parts are spaced so that
// neighbouring lanes may read different ones.
struct CombineScratch {
  static constexpr int kPad = 64;  // bytes
  static constexpr int kSliceBytes = kLanes * 16;

  uint8_t* stats;   // [part][row of the share]: RowStats, then weights of both halves
  float* inverses;  // [row of the share]: of the sums
  uint8_t* pieces;  // [part][slice of the share]
  int stats_stride, pieces_stride;  // bytes of a part

  __device__ __forceinline__ CombineScratch(Shared& shared, const Share& share)
      : stats(shared.q[0]),
        inverses(reinterpret_cast<float*>(shared.p)),
        pieces(shared.k[0][0]),
        stats_stride((share.n_rows + 1) * 16),
        pieces_stride(share.n_slices * kSliceBytes + kPad) {}

  __device__ __forceinline__ RowStats* row_stats(int part, int row) const {
    return reinterpret_cast<RowStats*>(stats + part * stats_stride) + row;
  }
};
static_assert(kMaxBlocks * (32 + 1) * 16 <= sizeof(Shared::q) &&
              (kSlices + kMaxBlocks) * CombineScratch::kSliceBytes +
                      kMaxBlocks * CombineScratch::kPad <=
                  sizeof(Shared::k));

// The statistics of all parts in the rows of a share, and what follows of them: the weight of every
// part and the rows' sums. A row has 16 or 8 threads, so that all 256 work; each copies what it
// reads itself.
class PartWeights {
 public:
  __device__ __forceinline__ PartWeights(const Share& share, const CombineScratch& scratch,
                                         int n_parts)
      : share_(share),
        scratch_(scratch),
        n_parts_(n_parts),
        threads_(share.n_rows == 16 ? 16 : 8),
        row_(threadIdx.x / threads_),
        first_(threadIdx.x % threads_) {}

  __device__ __forceinline__ void copy(const Args& args, const Segment& s) const {
#pragma unroll 1
    for (int part = first_; part < n_parts_; part += threads_)
      copy_async16(shared_address(scratch_.row_stats(part, row_)),
                   args.partial_stats + s.slot(part) * kRows + share_.row0 + row_, true);
    commit_copies();
  }

  __device__ __forceinline__ void compute(const Args& args, const Job& job) const {
    float reference = kNegativeInfinity, sum = 0.0f;
#pragma unroll 1
    for (int part = first_; part < n_parts_; part += threads_)
      reference = fmaxf(reference, scratch_.row_stats(part, row_)->reference);
    over_row(reference, [](float a, float b) { return fmaxf(a, b); });
    const float base = shift(reference);
#pragma unroll 1
    for (int part = first_; part < n_parts_; part += threads_) {
      RowStats* at = scratch_.row_stats(part, row_);
      const RowStats stats = *at;
      const float weight = exp2_estimate(stats.reference - base);
      sum += (stats.sums[0] + stats.sums[1]) * weight;
      *reinterpret_cast<float2*>(at) =
          make_float2(weight * part_unit(stats, 0), weight * part_unit(stats, 1));
    }
    over_row(sum, [](float a, float b) { return a + b; });
    if (first_ > 0) return;
    scratch_.inverses[row_] = sum == 0.0f ? 0.0f : 1.0f / sum;
    store_lse(args, job, reference, sum);
  }

 private:
  // Of the row's threads, 8 or 16.
  template <typename Fn>
  __device__ __forceinline__ void over_row(float& x, const Fn& fn) const {
#pragma unroll
    for (int d = 1; d < 16; d *= 2) {
      const float other = __shfl_xor_sync(kAllLanes, x, d);
      if (d < threads_) x = fn(x, other);
    }
  }

  // Written by the sharer whose share contains the first slice of the row's quarter.
  __device__ __forceinline__ void store_lse(const Args& args, const Job& job, float reference,
                                            float sum) const {
    const int row = share_.row0 + row_, slice = row / 16 * 32 - share_.first;
    const ItemRows rows(args, job);
    if (slice >= 0 && slice < share_.n_slices && row < rows.n)
      args.lse[rows.first + row] = row_lse(reference, sum);
  }

  const Share& share_;
  const CombineScratch& scratch_;
  const int n_parts_, threads_, row_, first_;
};

// The copies of the slices of all parts, a warp's for every eighth.
class SliceCopies {
 public:
  __device__ __forceinline__ SliceCopies(const Segment& s, const Share& share,
                                         const CombineScratch& scratch)
      : warp_(uniform(threadIdx.x / 32)),
        n_(uniform((s.n_parts + kConsumerWarps - 1 - warp_) / kConsumerWarps)),
        bytes_(uniform(share.n_slices * CombineScratch::kSliceBytes)),
        first_(share.first),
        slot_(s.slot(warp_ + threadIdx.x % 32 * kConsumerWarps)),
        step_(kConsumerWarps * scratch.pieces_stride),
        to_(scratch.pieces + warp_ * scratch.pieces_stride) {}

  __device__ __forceinline__ void start(const Args& args, MBarrier* full) const {
    fence_proxy_async_global();
    if (threadIdx.x % 32 == 0) mbarrier_arrive_expect(full, bytes_ * n_);
    uint8_t* to = to_;
#pragma unroll 1
    for (int i = 0; i < n_; ++i, to += step_)
      bulk_copy(to, slice_of(args, uniform_from(slot_, i), first_, 0), bytes_, full);
  }

 private:
  const int warp_, n_, bytes_, first_;  // n_: at most 17
  const int slot_;                      // of the lane's part
  const int step_;
  uint8_t* const to_;
};

// Sums the slices of all parts. A warp sums a slice. Where slices are few, `split` warps do one:
// each takes a share of its lanes' elements, and its own lanes take every `split`-th part and add
// up at the end. (9 to 12 slices: three rounds of half the parts, not two of all.)
__device__ __forceinline__ void sum_slices(const Args& args, const Job& job, const Share& share,
                                           const CombineScratch& scratch) {
  const int n_slices = uniform(share.n_slices);
  const int log_split = n_slices == 1                                       ? 3
                        : n_slices == 2                                     ? 2
                        : n_slices <= 4 || (n_slices > 8 && n_slices <= 12) ? 1
                                                                            : 0;
  const int split = 1 << log_split, lanes = kLanes >> log_split;
  const int warp = uniform(threadIdx.x / 32), in_warp = threadIdx.x % 32;
  const int first_part = in_warp >> (5 - log_split);
  const int lane = (warp & (split - 1)) * lanes + (in_warp & (lanes - 1));  // of a slice
  const int n_mine = (job.segment.n_parts - first_part + split - 1) >> log_split;
  const int stats_step = split * scratch.stats_stride;
  const int pieces_step = split * scratch.pieces_stride;
  const ItemRows rows(args, job);
#pragma unroll 1
  for (int k = warp >> log_split; k < n_slices; k += kConsumerWarps >> log_split) {
    const int slice = share.first + k, row = slice / 32 * 16 + lane / 4 - share.row0;
    const uint8_t* weights =
        scratch.stats + first_part * scratch.stats_stride + row * 16 + slice / 16 % 2 * 4;
    const uint8_t* pieces = scratch.pieces + first_part * scratch.pieces_stride +
                            k * CombineScratch::kSliceBytes + lane * 16;
    const float inverse0 = scratch.inverses[row], inverse8 = scratch.inverses[row + 8];
    float x[8] = {};
    const auto add = [&](int part) {
      const auto* weight = reinterpret_cast<const float*>(weights + part * stats_step);
      add_slice(x, *reinterpret_cast<const uint4*>(pieces + part * pieces_step), weight[0],
                weight[8 * 4]);
    };
    int n = n_mine;
#pragma unroll 1
    for (; n >= 2; n -= 2) {
      add(0);
      add(1);
      pieces += 2 * pieces_step;
      weights += 2 * stats_step;
    }
    if (n > 0) add(0);
#pragma unroll 1
    for (int d = lanes; d < 32; d *= 2) {
#pragma unroll
      for (float& v : x) v += __shfl_xor_sync(kAllLanes, v, d);
    }
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] *= i / 2 % 2 == 0 ? inverse0 : inverse8;
    store_slice(args, rows, slice, lane, x, first_part == 0);
  }
}

// Number `n` of the thread block's combines; false where it had no share, then the number is still
// free.
__device__ __forceinline__ bool combine(const Args& args, const Job& job, Shared& shared, int n) {
  const Segment& s = job.segment;
  const Share share(s);
  if (share.n_slices == 0) return false;
  const CombineScratch scratch(shared, share);
  const PartWeights weights(share, scratch, s.n_parts);
  const SliceCopies copies(s, share, scratch);
  if (threadIdx.x < s.n_parts) wait_for_part(args.last_launch + s.slot(threadIdx.x), job.launch);
  consumers_sync();
  weights.copy(args, s);
  copies.start(args, &shared.slices_full);
  wait_for_copies<0>();
  weights.compute(args, job);
  mbarrier_wait(&shared.slices_full, n & 1);
  consumers_sync();
  sum_slices(args, job, share, scratch);
  return true;
}

}  // namespace kdt::cuda::sm90
