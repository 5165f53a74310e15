// Partial results of the mma implementation's split row tiles: where they lie in the workspace and
// the kernel that combines them.
#pragma once

#include <algorithm>

#include "cuda/device/attention_schedule.cuh"
#include "cuda/device/dependency.cuh"
#include "cuda/device/exp2.cuh"
#include "cuda/device/lanes.cuh"
#include "cuda/device/online_softmax.cuh"
#include "cuda/device/store.cuh"
#include "cuda/launch.h"
#include "ops/verify_attention.h"

namespace kdt::cuda {

inline constexpr int kLatent = 512, kRope = 64, kWidth = kLatent + kRope;

// Of one (slot, row of the tile): values weighted by exp2(score - reference), not yet divided by
// the weights' sum. Scores and references are in units of log2.
struct Partials {
  float* values;  // [slots * row tile, 512]
  float2* stats;  // [slots * row tile] reference, sum of weights
};

// Room for the partial results of any lengths within the sizes of `p`: no more segments than the
// schedule makes of the longest requests, and no more than it makes on n_ctas.
inline size_t partial_rows(const VerifyAttentionParams& p, int n_ctas, int largest_tile) {
  const auto n_requests = static_cast<size_t>(p.rows.n_requests);
  const size_t n_queries = static_cast<size_t>(p.rows.n_rows) * p.n_heads;
  const size_t n_keys = static_cast<size_t>(p.rows.max_blocks) * kPageTokens + p.rows.n_rows;
  if (p.batch_invariant)
    return std::min(n_requests * device::kInvariantParts * 64,
                    (n_keys / device::kInvariantKeys + 1) * (n_queries + n_requests * 64));
  const size_t n_tiles = n_queries / 32 + 1;
  const size_t n_pieces = n_keys / device::kShortestKeys + 4;
  return std::min<size_t>(device::kSlotsPerCta * n_ctas, 2 * n_requests * n_tiles * n_pieces) *
         largest_tile;
}

inline size_t partials_bytes(const VerifyAttentionParams& p, int n_ctas, int largest_tile) {
  return partial_rows(p, n_ctas, largest_tile) * (kLatent * sizeof(float) + sizeof(float2));
}

inline Partials partials_in(const VerifyAttentionParams& p, int n_ctas, int largest_tile) {
  auto* values = static_cast<float*>(p.workspace.data);
  return {values,
          reinterpret_cast<float2*>(values + partial_rows(p, n_ctas, largest_tile) * kLatent)};
}

__device__ inline device::ScheduleParams schedule_params(const VerifyAttentionParams& p,
                                                         int n_ctas) {
  return {p.rows.n_nodes, p.rows.prefix_len, p.rows.n_requests, p.n_heads,
          n_ctas,         p.batch_invariant};
}

// Natural-log sum of exp of scores, from a reference in units of log2 and the weights' sum.
__device__ inline float natural_lse(float reference, float sum) {
  return sum == 0.0f ? -INFINITY : reference * device::kLn2 + logf(sum);
}

// A row of a split tile, by its parts.
template <int kRowTile>
struct SplitRow {
  static constexpr int kBatch = 7;  // parts that are under way at once

  const Partials& partials;
  const device::Splits& splits;
  int row;  // of the tile

  __device__ uint32_t at(int s) const { return splits.slot(s) * kRowTile + row; }

  // The largest reference and the sum of weights relative to it. A warp.
  __device__ float2 total() const {
    float max = -INFINITY, sum = 0.0f;
    for (int s = threadIdx.x % 32; s < splits.n; s += 32) max = fmaxf(max, partials.stats[at(s)].x);
    for (int i = 16; i > 0; i /= 2) max = fmaxf(max, __shfl_xor_sync(device::kAllLanes, max, i));
    for (int s = threadIdx.x % 32; s < splits.n; s += 32) {
      const float2 stats = partials.stats[at(s)];
      sum += exp2f(stats.x - device::shift(max)) * stats.y;
    }
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(device::kAllLanes, sum, i);
    return {max, sum};
  }

  // Columns 4 column .. + 3 of the weighted parts first, first + step, ..., added in this order.
  __device__ float4 values(float max, int column, int first, int step) const {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int s = first; s < splits.n; s += kBatch * step) {
      float4 values[kBatch];
      float references[kBatch];
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        values[k] = {0.0f, 0.0f, 0.0f, 0.0f};
        references[k] = -INFINITY;
        if (s + k * step >= splits.n) continue;
        const uint32_t from = at(s + k * step);
        values[k] = reinterpret_cast<const float4*>(partials.values)[from * (kLatent / 4) + column];
        references[k] = partials.stats[from].x;
      }
#pragma unroll
      for (int k = 0; k < kBatch; ++k) {
        const float weight = exp2f(references[k] - device::shift(max));
        sum.x += weight * values[k].x;
        sum.y += weight * values[k].y;
        sum.z += weight * values[k].z;
        sum.w += weight * values[k].w;
      }
    }
    return sum;
  }
};

inline constexpr int kCombineThreads = 512;
inline constexpr int kCombineCtas = 2;  // on a multiprocessor

// A warp adds the parts of a row for 128 columns. Four rows at a time; of many parts one row at a
// time, its parts dealt out to four warps. The order is always the same.
template <int kRowTile, int kKeyTile>
__global__ void __launch_bounds__(kCombineThreads, kCombineCtas)
    combine_kernel(const VerifyAttentionParams p, const Partials partials, int n_ctas) {
  __shared__ device::Schedule<kRowTile, kKeyTile> schedule;
  __shared__ float4 sums[kCombineThreads];
  const device::ScheduleParams sizes = schedule_params(p, n_ctas);
  // Lengths are older than the kernel before this one, which had waited for them before it let this
  // one start.
  schedule.build(sizes);
  schedule.list_split(sizes);
  device::wait_for_previous();
  device::let_next_start();
  const int n_tiles = schedule.n_listed(sizes), n_ctas_here = gridDim.x;
  int rows = kRowTile;  // of a tile, that a CTA does at a time
  while (rows > 1 && n_tiles * (kRowTile / rows) < n_ctas_here) rows /= 2;
  const int quarter = threadIdx.x / 128, column = threadIdx.x % 128;  // of four
  const bool f32 = p.out_dtype == DType::kF32, bf16 = p.out_dtype == DType::kBF16;
  for (int unit = blockIdx.x; unit < n_tiles * (kRowTile / rows); unit += n_ctas_here) {
    int request, tile;
    schedule.find_listed(sizes, unit / (kRowTile / rows), request, tile);
    const device::Splits splits = schedule.splits(sizes, request, tile);
    if (splits.n == 1) continue;
    const bool few = splits.n <= SplitRow<kRowTile>::kBatch;
    const int64_t first_query =
        static_cast<int64_t>(p.rows.row_offset[request]) * p.n_heads + tile * kRowTile;
    const int first = unit % (kRowTile / rows) * rows;
    const int end = min(first + rows, p.rows.n_nodes[request] * p.n_heads - tile * kRowTile);
    for (int base = first; base < end; base += few ? 4 : 1) {
      const SplitRow<kRowTile> row = {partials, splits, base + (few ? quarter : 0)};
      if (row.row >= end) continue;  // of few parts only
      const float2 total = row.total();
      float4 sum = row.values(total.x, column, few ? 0 : quarter, few ? 1 : 4);
      if (!few) {
        __syncthreads();  // sums are out of use
        sums[threadIdx.x] = sum;
        __syncthreads();
        if (quarter > 0) continue;
        for (int i = 1; i < 4; ++i) {
          const float4 more = sums[i * 128 + column];
          sum = {sum.x + more.x, sum.y + more.y, sum.z + more.z, sum.w + more.w};
        }
      }
      const int64_t query = first_query + row.row, to = query * kLatent + 4 * column;
      const float inverse = total.y == 0.0f ? 0.0f : 1.0f / total.y;
      if (column == 0) p.lse[query] = natural_lse(total.x, total.y);
      device::store_pair(p.out, f32, bf16, to, sum.x * inverse, sum.y * inverse);
      device::store_pair(p.out, f32, bf16, to + 2, sum.z * inverse, sum.w * inverse);
    }
  }
}

// Enqueued behind the kernel that wrote the partial results with the same tile sizes and n_ctas.
template <int kRowTile, int kKeyTile>
void launch_combine(const VerifyAttentionParams& p, const Partials& partials, int n_ctas,
                    Stream stream) {
  launch(combine_kernel<kRowTile, kKeyTile>,
         {.grid = {static_cast<unsigned>(kCombineCtas * n_ctas)}, .block = {kCombineThreads}},
         stream, p, partials, n_ctas);
}

}  // namespace kdt::cuda
