// Storing what a consumer warpgroup of the wgmma attention kernel has computed.
#pragma once

#include <type_traits>

#include "cuda/verify_attention_sm90_combine.cuh"

namespace kdt::cuda::sm90 {

// The accumulators to the workspace. After consumers_sync(), part_is_stored() tells the others.
__device__ __forceinline__ void store_part(const Args& args, const Segment& s,
                                           const float (&o)[128]) {
  const int group = threadIdx.x / 128, quarter = threadIdx.x / 32 % 4;
  float* out = slice_of(args, s.slot(s.part), 64 * quarter + 32 * group, threadIdx.x % 32);
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    *reinterpret_cast<float4*>(out + j * kSliceFloats) =
        make_float4(o[4 * j], o[4 * j + 1], o[4 * j + 2], o[4 * j + 3]);
  }
}

// Of one warp, which stores the rows' statistics too.
__device__ __forceinline__ void part_is_stored(const Args& args, const Shared& shared,
                                               const Segment& s, int parity) {
  const int lane = threadIdx.x % 32;
  float2* stats = args.partial_stats + int64_t{s.slot(s.part)} * kRows;
  for (int row = lane; row < kRows; row += 32) {
    stats[row] = make_float2(shared.last_reference[parity][row],
                             shared.sum[parity][0][row] + shared.sum[parity][1][row]);
  }
  __syncwarp();
  if (lane == 0)
    asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(args.counters + 2 * s.owner)
                 : "memory");
}

// Row `r` of the thread's two times `factor`, as pairs of columns 8 apart from `to` on.
template <typename T, typename Pair>
__device__ __forceinline__ void store_row(T* to, int r, const float (&o)[128], float factor,
                                          const Pair& pair) {
#pragma unroll
  for (int j = 0; j < 32; ++j) {
    const auto value = pair(o[4 * j + 2 * r] * factor, o[4 * j + 2 * r + 1] * factor);
    *reinterpret_cast<std::remove_const_t<decltype(value)>*>(to + 8 * j) = value;
  }
}

// The result of segment number `segment` of the block: the item's if it is the only part, or a part
// in the workspace. The thread has the accumulators `o` of rows `row` and `row` + 8, their exponent
// references and its share of their sums.
__device__ __forceinline__ void store_segment(const Args& args, Shared& shared, const Job& job,
                                              int segment, int row, const float (&o)[128],
                                              const float (&reference)[2], float (&sum)[2]) {
  const int group = threadIdx.x / 128, lane = threadIdx.x % 32;
  const Segment& s = job.segment;
  const int parity = segment & 1;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 1);
    sum[r] += __shfl_xor_sync(0xffffffffu, sum[r], 2);
    if (lane % 4 == 0) {
      shared.sum[parity][group][row + 8 * r] = sum[r];
      if (group == 0) shared.last_reference[parity][row + 8 * r] = reference[r];
    }
  }
  if (s.n_parts > 1) {
    store_part(args, s, o);
    consumers_sync();
    if (threadIdx.x < 32) part_is_stored(args, shared, s, parity);
    return;
  }
  consumers_sync();
  float total[2];
#pragma unroll
  for (int r = 0; r < 2; ++r)
    total[r] = shared.sum[parity][0][row + 8 * r] + shared.sum[parity][1][row + 8 * r];
  const float inverse[2] = {total[0] == 0.0f ? 0.0f : 1.0f / total[0],
                            total[1] == 0.0f ? 0.0f : 1.0f / total[1]};
  const int n_heads = args.lengths.n_heads;
  const int64_t item_row = int64_t{s.item} * kRows + row;
  const int64_t n_rows = int64_t{job.n_nodes} * n_heads;
  const int64_t out_row = int64_t{job.row_offset} * n_heads + item_row;
  const int column = 256 * group + lane % 4 * 2;
#pragma unroll
  for (int r = 0; r < 2; ++r) {
    if (item_row + 8 * r >= n_rows) continue;
    const int64_t at = (out_row + 8 * r) * kLatent + column;
    if (args.out_type == OutType::kF32)
      store_row(static_cast<float*>(args.out) + at, r, o, inverse[r],
                [](float x, float y) { return make_float2(x, y); });
    else if (args.out_type == OutType::kBF16)
      store_row(static_cast<uint16_t*>(args.out) + at, r, o, inverse[r], pack<Bf16>);
    else
      store_row(static_cast<uint16_t*>(args.out) + at, r, o, inverse[r], pack<Fp16>);
    if (group == 0 && lane % 4 == 0) args.lse[out_row + 8 * r] = row_lse(reference[r], total[r]);
  }
}

}  // namespace kdt::cuda::sm90
