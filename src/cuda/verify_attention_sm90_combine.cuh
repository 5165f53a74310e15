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
    const uint32_t bf16 = pack<Bf16>(x, y), f16 = pack<Fp16>(x, y);
    const uint32_t packed = args.out_type == OutType::kBF16 ? bf16 : f16;
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

// From one part to the next in the statistics and weights of n_rows rows: odd, so that the parts of
// a row lie in different banks.
__device__ __forceinline__ int stats_stride(int n_rows) {
  return n_rows + 1;
}

// The weighted sum of parts [begin, end) of two slices. `weights` of a part start at row `row0` of
// the item and are `stride` apart.
__device__ __forceinline__ void add_parts(const Args& args, const Segment& s, const float* weights,
                                          int row0, int stride, int begin, int end,
                                          const int (&slices)[2], int lane, float4 (&sum)[2]) {
  constexpr int kUnroll = 9;  // loads of as many parts are under way together
  const float4* from[2];
  const float* weight[2];
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    from[i] = reinterpret_cast<const float4*>(args.partial_out + slice_float(0, slices[i], lane));
    weight[i] = weights + slices[i] / 64 * 16 + lane / 4 - row0;
    sum[i] = {};
  }
#pragma unroll 1
  for (int part = begin; part < end; part += kUnroll) {
    float4 v[kUnroll][2];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (part + u >= end) break;
      const int64_t at = int64_t{s.slot(part + u)} * (kPartialFloats / 4);
#pragma unroll
      for (int i = 0; i < 2; ++i) v[u][i] = __ldcg(from[i] + at);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      if (part + u >= end) break;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float a = weight[i][(part + u) * stride], b = weight[i][(part + u) * stride + 8];
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
  const int stride = stats_stride(n_rows);
  // 16 threads load the statistics of a part's 16 rows; all loads are under way together.
  constexpr int kUnroll = 9, kGroups = kConsumerThreads / 16;
  const int quarters = n_rows / 16, n_loads = s.n_parts * quarters, column = threadIdx.x % 16;
#pragma unroll 1
  for (int i = threadIdx.x / 16; i < n_loads; i += kUnroll * kGroups) {
    float2 v[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = i + u * kGroups;
      if (at >= n_loads) break;
      v[u] = __ldcg(args.partial_stats + int64_t{s.slot(at / quarters)} * kRows + row0 +
                    at % quarters * 16 + column);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int at = i + u * kGroups;
      if (at >= n_loads) break;
      stats[at / quarters * stride + at % quarters * 16 + column] = v[u];
    }
  }
  consumers_sync();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  for (int row = warp; row < n_rows; row += kConsumerThreads / 32) {
    float reference = kNegativeInfinity, sum = 0.0f;
    for (int i = lane; i < s.n_parts; i += 32)
      reference = fmaxf(reference, stats[i * stride + row].x);
    for (int d = 16; d > 0; d /= 2)
      reference = fmaxf(reference, __shfl_xor_sync(0xffffffffu, reference, d));
    const float base = reference == kNegativeInfinity ? 0.0f : reference;
    for (int i = lane; i < s.n_parts; i += 32) {
      const float2 part = stats[i * stride + row];
      sum += part.y * exp2f(part.x - base);
    }
    for (int d = 16; d > 0; d /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, d);
    const float inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
    for (int i = lane; i < s.n_parts; i += 32)
      weights[i * stride + row] = exp2f(stats[i * stride + row].x - base) * inverse;
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
  const int stride = stats_stride(n_rows);
  auto* weights = reinterpret_cast<float*>(stats + (s.n_parts * stride + 1) / 2 * 2);
  part_weights(args, job, first, last, stats, weights);

  // With many parts there are few slices for each: then a warp does an eighth of the parts of
  // every slice, else all parts of every eighth slice.
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const bool share_parts = last - first < 8;
  const int begin = share_parts ? s.n_parts * warp / 8 : 0;
  const int end = share_parts ? s.n_parts * (warp + 1) / 8 : s.n_parts;
  const int step = share_parts ? 1 : 8;
  auto* sums = reinterpret_cast<float4*>(weights + (s.n_parts * stride + 3) / 4 * 4);
#pragma unroll 1
  for (int slice = first + (share_parts ? 0 : warp); slice < last; slice += 2 * step) {
    const bool second = slice + step < last;
    const int slices[2] = {slice, second ? slice + step : slice};
    float4 sum[2];
    add_parts(args, s, weights, row0, stride, begin, end, slices, lane, sum);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if (i == 1 && !second) break;
      if (share_parts)
        sums[((slices[i] - first) * 8 + warp) * 32 + lane] = sum[i];
      else
        store_slice(args, job, slices[i], lane, sum[i]);
    }
  }
  if (share_parts) {
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
