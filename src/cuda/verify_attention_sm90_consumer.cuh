// The two consumer warpgroups of the wgmma attention kernel. Both keep half of the output columns
// of the same 64 rows (64 x 256 accumulators each). Key blocks belong to them alternately: the
// owner computes the scores and probabilities of a block, both multiply the probabilities with
// their half of the block's values, the owner from registers, the other from shared memory.
//
// Products of the block before go between the scores of a block: before the last tile, so that the
// slot of the block before is refilled while the scores still need this one's. The two warpgroups
// run half a period apart.
#pragma once

#include "cuda/device/exp2.cuh"
#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_mask.cuh"
#include "cuda/verify_attention_sm90_store.cuh"

namespace kdt::cuda::sm90 {

// Tiles of the scores that go before the products of the block before.
inline constexpr int kTilesAhead = 8;
inline constexpr float kReferenceAboveAll = 1e30f;

// One object does one segment: number `n_segments` of this thread block, its key blocks number
// `n_blocks` and following.
template <typename Element>
class SegmentConsumer {
 public:
  __device__ __forceinline__ SegmentConsumer(const Args& args, Shared& shared, const Job& job,
                                             int n_segments, int n_blocks)
      : args_(args),
        shared_(shared),
        job_(job),
        group_(uniform(threadIdx.x / 128)),
        lane_(threadIdx.x % 32),
        row_(threadIdx.x / 32 % 4 * 16 + lane_ / 4),
        block_(n_blocks),
        segment_(n_segments),
        q_first_(uniform(row_major_low(shared.q[tile_at(group_, kOwnValues)]))),
        q_second_(uniform(row_major_low(shared.q[tile_at(group_, kOtherValues)]))),
        k_(uniform(row_major_low(shared.k[group_]))) {
    // Rows that do not exist get no weights: products with zeros take less power.
    const int n_rows = job.n_nodes * args.lengths.n_heads - job.segment.item * kRows;
#pragma unroll
    for (int r = 0; r < 2; ++r)
      reference_[r] = row_ + 8 * r < n_rows ? kNegativeInfinity : kReferenceAboveAll;
  }

  // The segment's key blocks, then its result.
  __device__ __forceinline__ void run() {
    const int n = job_.segment.n_blocks, first = (block_ + group_) & 1;
    if (first >= n) arrive(&shared_.q_empty);  // no scores of this warpgroup's
    // Where it has no scores either, so that somebody waits for every phase.
    if (first == 1) mbarrier_wait(&shared_.q_full, segment_ & 1);
    for (int i = first; i < n; i += 2) {
      wgmma_touch(s_);
      scores<0, kTilesAhead>(i);
      const RowWords words = row_words(args_, job_, row_, job_.segment.first_block + i);
      if (i > 0) products_of_other(i - 1);
      scores<kTilesAhead, kWidthTiles>(i);
      if (i == 0) arrive(&shared_.q_full);
      if (i > 0) {
        wgmma_wait<1>();
        wgmma_touch(o_);
        release_values(1 - group_);
      }
      wgmma_wait<0>();
      wgmma_touch(s_);
      arrive(&shared_.rope_empty[group_]);
      if (i + 2 >= n) arrive(&shared_.q_empty);
      move_references(i, words);
      products_of_own(i);
    }
    if (n > 0 && ((block_ + n - 1 + group_) & 1) != 0) {
      products_of_other(n - 1);
      wait_for_products();
      release_values(1 - group_);
    }
    store_segment(args_, shared_, job_, segment_, row_, o_, reference_, sum_);
  }

 private:
  __device__ __forceinline__ void group_sync() {
    asm volatile("bar.sync %0, 128;" ::"r"(2 + group_) : "memory");
  }

  // One arrival per warp, after all its lanes.
  __device__ __forceinline__ void arrive(MBarrier* barrier) {
    __syncwarp();
    if (lane_ == 0) mbarrier_arrive(barrier);
  }

  // Starts s = q k^T of block i over some of its tiles.
  template <int kFirst, int kEnd>
  __device__ __forceinline__ void scores(int i) {
    const uint32_t parity = (block_ + i) >> 1 & 1;
#pragma unroll
    for (int place = kFirst; place < kEnd; ++place) {
      mbarrier_wait(&shared_.k_full[group_][place], parity);
      wgmma_fence();
      const uint32_t q = place < kOwnValues     ? row_major_low(shared_.q[kRopeTile])
                         : place < kOtherValues ? q_first_
                                                : q_second_;
      const int tile = place < kOwnValues ? 0 : (place - kOwnValues) % 4;
#pragma unroll
      for (int step = 0; step < 4; ++step)
        wgmma_64x64<Element>(s_, descriptor(q, tile * kTileBytes + 32 * step),
                             descriptor(k_, place * kTileBytes + 32 * step), place + step > 0);
    }
    wgmma_commit();
  }

  // Starts o += p v of block i, which the other warpgroup owns.
  __device__ __forceinline__ void products_of_other(int i) {
    const int block = block_ + i, slot = 1 - group_;
    mbarrier_wait(&shared_.p_full[slot][0], block >> 1 & 1);
    const float reference[2] = {shared_.reference[row_], shared_.reference[row_ + 8]};
    if (i > 0 && shared_.moved[slot].any != 0) {
      wgmma_wait<0>();  // by all warps of the warpgroup or none: they read the same word
      rescale(reference);
    }
    reference_[0] = reference[0];
    reference_[1] = reference[1];
    if (!sees_all(i) && shared_.not_finite[slot] != 0) clear_missing_values(i, slot);
    const uint32_t p = row_major_low(shared_.p);
    const uint32_t v = column_major_low(shared_.k[slot][kOtherValues]);
    wgmma_touch(o_);
#pragma unroll
    for (int step = 0; step < 4; ++step) {
      if (step > 0 && step % kChunkSteps == 0)
        mbarrier_wait(&shared_.p_full[slot][step / kChunkSteps], block >> 1 & 1);
      if (step % kChunkSteps == 0) wgmma_fence();
      wgmma_64x256<Element>(o_, descriptor(p, 32 * step), descriptor(v, 2048 * step), i + step > 0);
    }
    wgmma_commit();
  }

  // Masks the scores and finds the references that they need.
  __device__ __forceinline__ void move_references(int i, RowWords words) {
    if (sees_all(i)) {
      not_finite_ = false;
    } else {
      not_finite_ = any_in_warpgroup(any_not_finite(s_), 2 + group_);
      if (not_finite_) {  // the values of its key are cleared: the score must spoil the row
#pragma unroll
        for (float& s : s_) s += 0.0f * s;
      }
      mask_scores(s_, words);
    }
    float most[2] = {kNegativeInfinity, kNegativeInfinity};
#pragma unroll
    for (int j = 0; j < 32; j += 4) {
      most[0] = fmaxf(most[0], fmaxf(s_[j], s_[j + 1]));
      most[1] = fmaxf(most[1], fmaxf(s_[j + 2], s_[j + 3]));
    }
    next_[0] = reference_[0];
    next_[1] = reference_[1];
    // Seldom. Where no lane's maximum raises a reference, the row's does not either.
    if (__any_sync(kAllLanes, raises(most[0], 0) || raises(most[1], 1))) {
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], 2));
        if (raises(most[r], r)) next_[r] = most[r] * args_.scale_log2;
      }
    }
  }

  // Turns a chunk of the scores into probabilities p_.
  __device__ __forceinline__ void softmax(int chunk) {
    const float base[2] = {shift(reference_[0]), shift(reference_[1])};
#pragma unroll
    for (int j = 8 * kChunkSteps * chunk; j < 8 * kChunkSteps * (chunk + 1); j += 2) {
      const int r = j / 2 & 1;
      const float x = exp2_estimate(fmaf(s_[j], args_.scale_log2, -base[r]));
      const float y = exp2_estimate(fmaf(s_[j + 1], args_.scale_log2, -base[r]));
      new_sum_[r] += x + y;
      p_[j / 2] = pack<Element>(x, y);
    }
  }

  // Whether a score moves the reference of row `r`.
  __device__ __forceinline__ bool raises(float score, int r) const {
    return score * args_.scale_log2 > reference_[r] + kReferenceSlack;
  }

  __device__ __forceinline__ bool sees_all(int i) const {
    return all_rows_see(job_, job_.segment.first_block + i);
  }

  // Does o += p v of block i, chunk by chunk: one is multiplied while the next one is computed.
  // Each is published meanwhile.
  __device__ __forceinline__ void products_of_own(int i) {
    const bool moves = next_[0] != reference_[0] || next_[1] != reference_[1];
    const bool moved = __any_sync(kAllLanes, moves);
    if (i > 0 && moved) rescale(next_);
    reference_[0] = next_[0];
    reference_[1] = next_[1];
    publish_references(moved);
    if (not_finite_) clear_missing_values(i, group_);
    const uint32_t v = column_major_low(shared_.k[group_][kOwnValues]);
    new_sum_[0] = new_sum_[1] = 0.0f;
    softmax(0);
    group_sync();  // all warps have read the probabilities that are overwritten now
    wgmma_touch(o_);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      if (chunk > 0) {
        wgmma_touch(s_);  // not all of it before the products of the chunk before
        softmax(chunk);
      }
      store_probabilities(chunk);
      wgmma_fence();
#pragma unroll
      for (int step = kChunkSteps * chunk; step < kChunkSteps * (chunk + 1); ++step)
        wgmma_64x256<Element>(o_, p_ + 4 * step, descriptor(v, 2048 * step), i + step > 0);
      wgmma_commit();
      fence_proxy_async();
      arrive(&shared_.p_full[group_][chunk]);
    }
    sum_[0] += new_sum_[0];
    sum_[1] += new_sum_[1];
    wait_for_products();
    release_values(group_);
  }

  __device__ __forceinline__ void wait_for_products() {
    wgmma_wait<0>();
    wgmma_touch(o_);
  }

  // The place of this warpgroup's values of a slot.
  __device__ __forceinline__ int values_of(int slot) const {
    return slot == group_ ? kOwnValues : kOtherValues;
  }

  // Lets the producer refill this warpgroup's values of a slot.
  __device__ __forceinline__ void release_values(int slot) {
    __syncwarp();
    if (lane_ < 2) mbarrier_arrive(&shared_.pair_empty[slot][values_of(slot) / 2 + lane_]);
  }

  // What the other warpgroup must know before it multiplies the first chunk.
  __device__ __forceinline__ void publish_references(bool moved) {
    if (lane_ == 0) shared_.moved[group_].warp[threadIdx.x / 32 % 4] = moved;
    if (threadIdx.x % 128 == 0) shared_.not_finite[group_] = not_finite_;
    if (lane_ % 4 == 0) {
      shared_.reference[row_] = reference_[0];
      shared_.reference[row_ + 8] = reference_[1];
    }
  }

  __device__ __forceinline__ void store_probabilities(int chunk) {
    const int row = threadIdx.x / 32 % 4 * 16 + lane_ % 16;
#pragma unroll
    for (int step = kChunkSteps * chunk; step < kChunkSteps * (chunk + 1); ++step) {
      const int at = 2 * step + lane_ / 16;
      store_matrix(shared_address(shared_.p) + row * 128 + ((at ^ (row & 7)) << 4), p_ + 4 * step);
    }
  }

  __device__ __forceinline__ void rescale(const float (&reference)[2]) {
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      factor[r] = reference[r] == reference_[r] ? 1.0f : exp2f(reference_[r] - reference[r]);
      sum_[r] *= factor[r];
    }
#pragma unroll
    for (int j = 0; j < 128; j += 4) {
      o_[j] *= factor[0];
      o_[j + 1] *= factor[0];
      o_[j + 2] *= factor[1];
      o_[j + 3] *= factor[1];
    }
  }

  // In this warpgroup's half of a slot.
  __device__ __forceinline__ void clear_missing_values(int i, int slot) {
    sm90::clear_missing_values<Element>(job_, job_.segment.first_block + i,
                                        &shared_.k[slot][values_of(slot)]);
    group_sync();
  }

  const Args& args_;
  Shared& shared_;
  const Job& job_;
  const int group_, lane_, row_;  // rows of the fragment: row_ and row_ + 8
  const int block_, segment_;
  // Descriptors: of the queries' tiles that the halves of this warpgroup's slot are multiplied
  // with, and of the slot. Where a product takes many instructions, the tensor cores wait for them.
  const uint32_t q_first_, q_second_, k_;
  float o_[128];    // accumulators
  float s_[32];     // scores
  uint32_t p_[16];  // probabilities as A fragments
  // Per row: exponent reference and sum, and those that the block in work brings (a block is summed
  // by itself, since what is added to a long sum is rounded to it).
  float reference_[2], sum_[2] = {0.0f, 0.0f};
  float next_[2], new_sum_[2];
  bool not_finite_ = false;  // scores of the block in work
};

}  // namespace kdt::cuda::sm90
