// The parts of an item in the workspace: how they are laid out, and how their sum becomes the
// result.
#pragma once

#include <cuda_fp16.h>

#include "cuda/device/online_softmax.cuh"
#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

// The 256 consumer threads.
__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

// Tells that launch number `launch` has stored a part. One thread, behind a barrier of all that
// stored it.
__device__ __forceinline__ void announce_part(uint32_t* last_launch, uint32_t launch) {
  asm volatile("st.release.gpu.global.u32 [%0], %1;" ::"l"(__cvta_generic_to_global(last_launch)),
               "r"(launch)
               : "memory");
}

// Waits until it has. The thread may then read the part, others behind a barrier.
__device__ __forceinline__ void wait_for_part(const uint32_t* last_launch, uint32_t launch) {
  uint32_t last;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                 : "=r"(last)
                 : "l"(__cvta_generic_to_global(last_launch))
                 : "memory");
  } while (last != launch);
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

// The partial output of an item is 128 slices of 32 lanes, one after the other: slice = 32 quarter
// + 16 half + sixteenth holds rows 16 quarter .. + 15 and columns 256 half + 16 sixteenth .. + 15
// as two accumulator fragments, 8 elements a lane. A sharer's share is some slices of every part.
inline constexpr int kSlices = 128, kLanes = 32;
static_assert(kSlices * kLanes * 8 == kPartialElements);

__device__ __forceinline__ uint4* slice_of(const Args& args, int slot, int slice, int lane) {
  return reinterpret_cast<uint4*>(args.partial_out + int64_t{slot} * kPartialElements) +
         slice * kLanes + lane;
}

// The first of 16 slices of a part that the thread's accumulators are of, 8 elements in each.
__device__ __forceinline__ uint4* own_slices(const Args& args, int slot) {
  const int group = threadIdx.x / 128, quarter = threadIdx.x / 32 % 4;
  return slice_of(args, slot, 32 * quarter + 16 * group, threadIdx.x % 32);
}

// A row of a part with an element of exponent e (as in its bits, at least kLeastExponent) is stored
// times 2^(kPartExponent - e), and both factors are normal numbers.
inline constexpr int kPartExponent = 127 + 14, kLeastExponent = 15;
__device__ __forceinline__ float power_of_two(int exponent) {
  return __int_as_float((127 + exponent) << 23);
}

// What the stored elements of a row's half are to be multiplied with.
__device__ __forceinline__ float part_unit(const RowStats& stats, int half) {
  return power_of_two((half == 0 ? stats.exponents[0] : stats.exponents[1]) - kPartExponent);
}

// Two floats as a pair of bf16 or fp16, the first in the low half.
__device__ __forceinline__ uint32_t pack16(float low, float high, bool bf16) {
  return bf16 ? pack<Bf16>(low, high) : pack<Fp16>(low, high);
}

// 16 bytes in one instruction. ptxas makes four of an ordinary store where that saves it moves.
__device__ __forceinline__ void store16(void* to, const uint32_t (&v)[4]) {
  asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(__cvta_generic_to_global(to)),
               "r"(v[0]), "r"(v[1]), "r"(v[2]), "r"(v[3])
               : "memory");
}

// Lane l's v[i] and lane i's v[l] change places, of every four lanes.
__device__ __forceinline__ void transpose_quad(uint32_t (&v)[4]) {
  const int lane = threadIdx.x % 4;
#pragma unroll
  for (int d = 2; d > 0; d /= 2) {
    const bool high = (lane & d) != 0;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (i & d) continue;
      const uint32_t got = __shfl_xor_sync(kAllLanes, high ? v[i] : v[i + d], d);
      v[i] = high ? got : v[i];
      v[i + d] = high ? v[i + d] : got;
    }
  }
}

// Adds a lane's 8 elements of a slice to `x`, weighted by row.
__device__ __forceinline__ void add_slice(float* x, uint4 part, float weight0, float weight8) {
  const uint32_t pairs[4] = {part.x, part.y, part.z, part.w};
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float weight = i % 2 == 0 ? weight0 : weight8;
    const float2 pair = __half22float2(reinterpret_cast<const __half2&>(pairs[i]));
    x[2 * i] += weight * pair.x;
    x[2 * i + 1] += weight * pair.y;
  }
}

// Stores the sums `x` of a lane's 8 elements of a slice, if `stores`. All lanes of a warp call it.
__device__ __forceinline__ void store_slice(const Args& args, const ItemRows& rows, int slice,
                                            int lane, const float (&x)[8], bool stores) {
  const int row = slice / 32 * 16 + lane / 4, column = slice % 32 * 16;
  const int64_t at = rows.first * kLatent + (row * kLatent + column);
  if (args.out_type == OutType::kF32) {
    float* out = static_cast<float*>(args.out) + at + lane % 4 * 2;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      if (stores && row + i % 2 * 8 < rows.n)
        *reinterpret_cast<float2*>(out + i % 2 * 8 * kLatent + i / 2 * 8) =
            make_float2(x[2 * i], x[2 * i + 1]);
    }
    return;
  }
  uint32_t v[4];  // 8 columns of a row for each lane: two lanes a row, then row + 8
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int from = i % 2 * 4 + i / 2 * 2;
    v[i] = pack16(x[from], x[from + 1], args.out_type == OutType::kBF16);
  }
  transpose_quad(v);
  const int down = lane % 4 / 2 * 8;
  if (stores && row + down < rows.n)
    store16(static_cast<uint16_t*>(args.out) + at + down * kLatent + lane % 2 * 8, v);
}

}  // namespace kdt::cuda::sm90
