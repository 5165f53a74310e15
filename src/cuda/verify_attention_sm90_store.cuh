// Storing what a consumer warpgroup of the wgmma attention kernel has computed.
#pragma once

#include "cuda/device/exp2.cuh"
#include "cuda/verify_attention_sm90_parts.cuh"

namespace kdt::cuda::sm90 {

// The accumulators to the workspace as fp16, each row of this warpgroup's half times a power of two
// that brings its largest to 2^14 .. 2^15: what the largest elements lose is 2^-11 of them, an
// eighth of what rounding probabilities to bf16 costs. And the rows' statistics.
__device__ __forceinline__ void store_part(const Args& args, int slot, int row,
                                           const float (&o)[128], const float (&reference)[2],
                                           const float (&sum)[2]) {
  const int group = threadIdx.x / 128;
  float most[2] = {0.0f, 0.0f};
#pragma unroll
  for (int j = 0; j < 128; j += 4) {
    most[0] = fmaxf(most[0], fmaxf(fabsf(o[j]), fabsf(o[j + 1])));
    most[1] = fmaxf(most[1], fmaxf(fabsf(o[j + 2]), fabsf(o[j + 3])));
  }
  float factor[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], 1));
    most[r] = fmaxf(most[r], __shfl_xor_sync(kAllLanes, most[r], 2));
    const int exponent = max(__float_as_int(most[r]) >> 23, kLeastExponent);
    factor[r] = power_of_two(kPartExponent - exponent);
    if (threadIdx.x % 4 == 0) {
      RowStats& stats = args.partial_stats[slot * kRows + row + 8 * r];
      if (group == 0) stats.reference = reference[r];
      stats.sums[group] = sum[r];
      stats.exponents[group] = static_cast<uint16_t>(exponent);
    }
  }
  uint4* out = own_slices(args, slot);
#pragma unroll
  for (int j = 0; j < 16; ++j) {
    const float* v = o + 8 * j;
    out[j * kLanes] = make_uint4(pack<Fp16>(v[0] * factor[0], v[1] * factor[0]),
                                 pack<Fp16>(v[2] * factor[1], v[3] * factor[1]),
                                 pack<Fp16>(v[4] * factor[0], v[5] * factor[0]),
                                 pack<Fp16>(v[6] * factor[1], v[7] * factor[1]));
  }
}

// Row `r` of the thread's two times `factor`, if it exists, at `to` in this warpgroup's half.
__device__ __forceinline__ void store_row(float* to, int r, const float (&o)[128], float factor,
                                          bool exists) {
  if (!exists) return;
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    *reinterpret_cast<float2*>(to + 8 * j + threadIdx.x % 4 * 2) =
        make_float2(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
  }
}

// The same in bf16 or fp16. All lanes call it: the four of a row exchange pairs, so that each
// stores 16 bytes in a piece.
__device__ __forceinline__ void store_row(uint16_t* to, int r, const float (&o)[128], float factor,
                                          bool exists, bool bf16) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int m = 0; m < 8; ++m) {
    uint32_t v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int j = 4 * m + i;
      v[i] = pack16(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor, bf16);
    }
    transpose_quad(v);
    if (exists) store16(to + 32 * m + 8 * lane, v);
  }
}

// Adds the item's other part, which the next gang stores: accumulators, references and total become
// the item's.
__device__ __forceinline__ void add_part(const Args& args, const Job& job, int row, float (&o)[128],
                                         float (&reference)[2], float (&total)[2]) {
  const int group = threadIdx.x / 128, slot = job.segment.slot(1);
  wait_for_part(args.last_launch + slot, job.launch);
  float own[2], other[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const RowStats stats = args.partial_stats[slot * kRows + row + 8 * r];
    const float before = reference[r];
    if (stats.reference > before + kReferenceSlack) reference[r] = stats.reference;
    own[r] = reference[r] == before ? 1.0f : exp2_estimate(before - reference[r]);
    const float factor = exp2_estimate(stats.reference - shift(reference[r]));
    other[r] = factor * part_unit(stats, group);
    total[r] = total[r] * own[r] + (stats.sums[0] + stats.sums[1]) * factor;
  }
  if (__any_sync(kAllLanes, own[0] != 1.0f || own[1] != 1.0f)) {  // seldom
#pragma unroll
    for (int j = 0; j < 128; ++j) o[j] *= own[j / 2 % 2];
  }
  const uint4* from = own_slices(args, slot);
#pragma unroll
  for (int j = 0; j < 16; ++j) add_slice(o + 8 * j, from[j * kLanes], other[0], other[1]);
}

// The result of segment number `segment` of the block: the item's if it is the only part or takes
// up the other one, or a part in the workspace. The thread has the accumulators `o` of rows `row`
// and `row` + 8, their exponent references and its share of their sums.
__device__ __forceinline__ void store_segment(const Args& args, Shared& shared, const Job& job,
                                              int segment, int row, float (&o)[128],
                                              float (&reference)[2], float (&sum)[2]) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const Segment& s = job.segment;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 1);
    sum[r] += __shfl_xor_sync(kAllLanes, sum[r], 2);
  }
  if (uniform(s.is_stored())) {
    const int slot = s.slot(s.part);
    store_part(args, slot, row, o, reference, sum);
    consumers_sync();
    // By the last warp: it takes long, and the first ones wait for the parts of all.
    if (threadIdx.x == kConsumerThreads - 1) announce_part(args.last_launch + slot, job.launch);
    return;
  }
  float(&sums)[2][kRows] = shared.sum[segment & 1];
  if (lane % 4 == 0) {
    sums[group][row] = sum[0];
    sums[group][row + 8] = sum[1];
  }
  consumers_sync();
  float total[2];
#pragma unroll
  for (int r = 0; r < 2; ++r) total[r] = sums[0][row + 8 * r] + sums[1][row + 8 * r];
  if (uniform(s.of_two_gangs())) {
    // Nothing is under way, but ptxas cannot tell and would serialize all products (C7515).
    wgmma_wait<0>();
    add_part(args, job, row, o, reference, total);
  }
  const float inverse[2] = {total[0] == 0.0f ? 0.0f : 1.0f / total[0],
                            total[1] == 0.0f ? 0.0f : 1.0f / total[1]};
  const ItemRows rows(args, job);
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    const bool exists = row + 8 * r < rows.n;
    const int64_t out_row = rows.first + row + 8 * r, at = out_row * kLatent + 256 * group;
    if (args.out_type == OutType::kF32)
      store_row(static_cast<float*>(args.out) + at, r, o, inverse[r], exists);
    else
      store_row(static_cast<uint16_t*>(args.out) + at, r, o, inverse[r], exists,
                args.out_type == OutType::kBF16);
    if (exists && group == 0 && lane % 4 == 0) args.lse[out_row] = row_lse(reference[r], total[r]);
  }
}

}  // namespace kdt::cuda::sm90
