// Combining the parts of an item: every thread block that did a part sums a share of the columns
// over all parts, in the order of the parts.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

inline constexpr float kNegativeInfinity = -__builtin_huge_valf();
inline constexpr float kLn2 = 0.6931471805599453f;

// The 256 consumer threads.
__device__ __forceinline__ void consumers_sync() {
  asm volatile("bar.sync 1, 256;" ::: "memory");
}

__device__ __forceinline__ void store_pair(const Args& args, int64_t row, int column, float x,
                                           float y) {
  const int64_t at = row * kLatent + column;
  if (args.out_type == OutType::kF32) {
    *reinterpret_cast<float2*>(static_cast<float*>(args.out) + at) = make_float2(x, y);
  } else {
    const uint32_t packed = args.out_type == OutType::kBF16 ? pack<Bf16>(x, y) : pack<Fp16>(x, y);
    *reinterpret_cast<uint32_t*>(static_cast<uint16_t*>(args.out) + at) = packed;
  }
}

// Log-sum-exp of a row from its reference (base 2) and sum.
__device__ __forceinline__ float row_lse(float reference, float sum) {
  return sum == 0.0f ? kNegativeInfinity : (reference + log2f(sum)) * kLn2;
}

// The partial output of an item is 256 slices of 32 lanes: slice = 64 quarter + 32 half + group
// holds rows 16 quarter .. + 15 and columns 256 half + 8 group .. + 7 as accumulator fragments.
inline constexpr int kSlices = 256;

__device__ __forceinline__ int64_t slice_float(int slot, int slice, int lane) {
  const int quarter = slice / 64, group = slice % 64;
  return int64_t{slot} * kPartialFloats + (group * 128 + quarter * 32 + lane) * 4;
}

__device__ __forceinline__ void store_slice(const Args& args, const Job& job, int slice, int lane,
                                            float4 v) {
  const int row = slice / 64 * 16 + lane / 4, column = slice % 64 * 8 + lane % 4 * 2;
  const int64_t item_row = int64_t{job.segment.item} * kRows + row;
  const int64_t n_rows = int64_t{job.n_nodes} * args.lengths.n_heads;
  const int64_t out_row = int64_t{job.row_offset} * args.lengths.n_heads + item_row;
  if (item_row < n_rows) store_pair(args, out_row, column, v.x, v.y);
  if (item_row + 8 < n_rows) store_pair(args, out_row + 8, column, v.z, v.w);
}

// sum[i] += weighted parts [begin, end) of slice first + 8 i, i < kN. `weights` [parts][n_rows]
// start at row `row0` of the item.
template <int kN>
__device__ __forceinline__ void add_parts(const Args& args, const Segment& s, const float* weights,
                                          int row0, int n_rows, int begin, int end, int first,
                                          int stride, int lane, float4 (&sum)[kN]) {
  constexpr int kUnroll = 16 / kN;
  for (int part = begin; part < end; part += kUnroll) {
    float4 v[kUnroll][kN];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (part + u >= end) break;
      const int slot = s.slot(part + u);
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        v[u][i] = __ldcg(reinterpret_cast<const float4*>(
            args.partial_out + slice_float(slot, first + stride * i, lane)));
      }
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (part + u >= end) break;
#pragma unroll
      for (int i = 0; i < kN; ++i) {
        const int row = (first + stride * i) / 64 * 16 + lane / 4 - row0;
        const float a = weights[(part + u) * n_rows + row];
        const float b = weights[(part + u) * n_rows + row + 8];
        sum[i].x += a * v[u][i].x;
        sum[i].y += a * v[u][i].y;
        sum[i].z += b * v[u][i].z;
        sum[i].w += b * v[u][i].w;
      }
    }
  }
}

// The weight of every part of the rows of slices [first, last), and their log-sum-exp.
__device__ __forceinline__ void part_weights(const Args& args, const Job& job, int first, int last,
                                             float2* stats, float* weights) {
  const Segment& s = job.segment;
  const int row0 = first / 64 * 16, n_rows = (last - 1) / 64 * 16 + 16 - row0;
  for (int i = threadIdx.x; i < s.n_parts * n_rows; i += kConsumerThreads) {
    stats[i] = __ldcg(args.partial_stats + int64_t{s.slot(i / n_rows)} * kRows + row0 + i % n_rows);
  }
  consumers_sync();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = warp; row < n_rows; row += kConsumerThreads / 32) {
    float reference = kNegativeInfinity, sum = 0.0f;
    for (int i = lane; i < s.n_parts; i += 32)
      reference = fmaxf(reference, stats[i * n_rows + row].x);
    for (int d = 16; d > 0; d /= 2)
      reference = fmaxf(reference, __shfl_xor_sync(0xffffffffu, reference, d));
    const float base = reference == kNegativeInfinity ? 0.0f : reference;
    for (int i = lane; i < s.n_parts; i += 32) {
      const float2 part = stats[i * n_rows + row];
      sum += part.y * exp2f(part.x - base);
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int i = lane; i < s.n_parts; i += 32)
      weights[i * n_rows + row] = exp2f(stats[i * n_rows + row].x - base) * inverse;
    // Written by the part whose share begins or contains the first slice of the row's quarter.
    const int quarter_slice = (row0 + row) / 16 * 64;
    const int64_t item_row = int64_t{s.item} * kRows + row0 + row;
    if (lane == 0 && quarter_slice >= first && quarter_slice < last &&
        item_row < int64_t{job.n_nodes} * args.lengths.n_heads) {
      args.lse[int64_t{job.row_offset} * args.lengths.n_heads + item_row] = row_lse(reference, sum);
    }
  }
  consumers_sync();
}

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

// `scratch` is the shared memory of the key slots.
__device__ __forceinline__ void combine(const Args& args, const Job& job, uint8_t* scratch) {
  const Segment& s = job.segment;
  const int first = kSlices * s.part / s.n_parts, last = kSlices * (s.part + 1) / s.n_parts;
  wait_for_parts(args, s);
  if (first == last) return;
  const int row0 = first / 64 * 16, n_rows = (last - 1) / 64 * 16 + 16 - row0;
  auto* stats = reinterpret_cast<float2*>(scratch);
  auto* weights = reinterpret_cast<float*>(stats + s.n_parts * n_rows);
  part_weights(args, job, first, last, stats, weights);

  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const auto add = [&](auto& sum, int begin, int end, int slice, int stride) {
    add_parts(args, s, weights, row0, n_rows, begin, end, slice, stride, lane, sum);
  };
  if (last - first >= 8) {  // a warp does every eighth slice
    int slice = first + warp;
    for (; slice + 24 < last; slice += 32) {
      float4 sum[4] = {};
      add(sum, 0, s.n_parts, slice, 8);
      for (int i = 0; i < 4; ++i) store_slice(args, job, slice + 8 * i, lane, sum[i]);
    }
    for (; slice < last; slice += 8) {
      float4 sum[1] = {};
      add(sum, 0, s.n_parts, slice, 8);
      store_slice(args, job, slice, lane, sum[0]);
    }
  } else {  // many parts: a warp does an eighth of the parts of every slice
    auto* sums = reinterpret_cast<float4*>(weights + (s.n_parts * n_rows + 3) / 4 * 4);
    const int begin = s.n_parts * warp / 8, end = s.n_parts * (warp + 1) / 8;
    for (int slice = first; slice < last; ++slice) {
      float4 sum[1] = {};
      add(sum, begin, end, slice, 1);
      sums[((slice - first) * 8 + warp) * 32 + lane] = sum[0];
    }
    consumers_sync();
    if (warp < last - first) {
      float4 total = {};
      for (int i = 0; i < 8; ++i) {
        const float4 v = sums[(warp * 8 + i) * 32 + lane];
        total = make_float4(total.x + v.x, total.y + v.y, total.z + v.z, total.w + v.w);
      }
      store_slice(args, job, first + warp, lane, total);
    }
  }
  consumers_sync();  // the scratch may be written again
}

}  // namespace kdt::cuda::sm90
