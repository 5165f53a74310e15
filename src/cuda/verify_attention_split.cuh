// Partial results of the mma implementation's split row tiles: where they lie in the workspace and
// the kernel that combines them.
#pragma once

#include <algorithm>

#include "cuda/device/attention_schedule.cuh"
#include "cuda/device/dependency.cuh"
#include "cuda/device/exp2.cuh"
#include "cuda/device/lanes.cuh"
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

inline constexpr int kCombineThreads = 512;
inline constexpr int kMaxSplits = 1024;

// One CTA for a (row, head) at a time: four groups of threads add every fourth split, a float4 of
// columns each, always in the same order.
template <int kRowTile, int kKeyTile>
__global__ void __launch_bounds__(kCombineThreads)
    combine_kernel(const VerifyAttentionParams p, const Partials partials, int n_ctas) {
  constexpr int kColumns = kLatent / 4, kGroups = kCombineThreads / kColumns;
  __shared__ device::Schedule<kRowTile, kKeyTile> schedule;
  __shared__ float weights[kMaxSplits];
  __shared__ float4 sums[kGroups][kColumns];
  __shared__ float inverse;
  __shared__ int owner;
  const device::ScheduleParams sizes = schedule_params(p, n_ctas);
  // Lengths are older than the kernel before this one, which had waited for them before it let this
  // one start.
  schedule.build(sizes);
  device::wait_for_previous();
  device::let_next_start();
  if (!schedule.any_splits(sizes)) return;

  const int64_t n_queries = static_cast<int64_t>(p.rows.n_rows) * p.n_heads;
  for (int64_t query = blockIdx.x; query < n_queries; query += gridDim.x) {
    const int row = static_cast<int>(query / p.n_heads);
    if (threadIdx.x == 0) owner = -1;
    __syncthreads();
    for (int b = threadIdx.x; b < p.rows.n_requests; b += kCombineThreads) {
      const int node = row - p.rows.row_offset[b];
      if (node >= 0 && node < p.rows.n_nodes[b]) owner = b;
    }
    __syncthreads();
    const int request = owner;
    __syncthreads();
    if (request < 0) continue;
    const int index =
        static_cast<int>(query - static_cast<int64_t>(p.rows.row_offset[request]) * p.n_heads);
    const device::Splits splits = schedule.splits(sizes, request, index / kRowTile);
    if (splits.n == 1) continue;
    const auto partial_row = [&](int s) {
      return static_cast<int64_t>(splits.slot(s)) * kRowTile + index % kRowTile;
    };

    if (threadIdx.x < 32) {
      float max = -INFINITY, sum = 0.0f;
#pragma unroll 4
      for (int s = threadIdx.x; s < splits.n; s += 32)
        max = fmaxf(max, partials.stats[partial_row(s)].x);
      for (int step = 16; step > 0; step /= 2)
        max = fmaxf(max, __shfl_xor_sync(device::kAllLanes, max, step));
      const float shift = max == -INFINITY ? 0.0f : max;
      for (int s = threadIdx.x; s < splits.n; s += 32) {
        const float2 stats = partials.stats[partial_row(s)];
        weights[s] = exp2f(stats.x - shift);
        sum += weights[s] * stats.y;
      }
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(device::kAllLanes, sum, step);
      if (threadIdx.x == 0) {
        inverse = sum == 0.0f ? 0.0f : 1.0f / sum;
        p.lse[query] = natural_lse(max, sum);
      }
    }
    __syncthreads();
    const int group = threadIdx.x / kColumns, column = threadIdx.x % kColumns;
    float4 total = {0.0f, 0.0f, 0.0f, 0.0f};
#pragma unroll 4
    for (int s = group; s < splits.n; s += kGroups) {
      const float4 values =
          reinterpret_cast<const float4*>(partials.values + partial_row(s) * kLatent)[column];
      const float weight = weights[s];
      total.x += weight * values.x;
      total.y += weight * values.y;
      total.z += weight * values.z;
      total.w += weight * values.w;
    }
    sums[group][column] = total;
    __syncthreads();
    if (group == 0) {
      for (int g = 1; g < kGroups; ++g) {
        total.x += sums[g][column].x;
        total.y += sums[g][column].y;
        total.z += sums[g][column].z;
        total.w += sums[g][column].w;
      }
      const int64_t first = query * kLatent + 4 * column;
      device::store_pair(p.out, p.out_dtype == DType::kF32, p.out_dtype == DType::kBF16, first,
                         total.x * inverse, total.y * inverse);
      device::store_pair(p.out, p.out_dtype == DType::kF32, p.out_dtype == DType::kBF16, first + 2,
                         total.z * inverse, total.w * inverse);
    }
    __syncthreads();
  }
}

// Enqueued behind the kernel that wrote the partial results with the same tile sizes and n_ctas.
template <int kRowTile, int kKeyTile>
void launch_combine(const VerifyAttentionParams& p, const Partials& partials, int n_ctas,
                    Stream stream) {
  const int64_t n_queries = static_cast<int64_t>(p.rows.n_rows) * p.n_heads;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(n_queries, 4 * n_ctas));
  launch(combine_kernel<kRowTile, kKeyTile>, {.grid = {grid}, .block = {kCombineThreads}}, stream,
         p, partials, n_ctas);
}

}  // namespace kdt::cuda
