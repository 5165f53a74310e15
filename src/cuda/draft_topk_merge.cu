// One CTA per row: an entry's place is its place in its own shard's list plus the entries before it
// in every other list, found by binary search (the lists are sorted, their ids disjoint).
#include "cuda/device/dependency.cuh"
#include "cuda/device/logits.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 256;

// Entry i of shard s in a row; kNoLogit past the entries there are.
__device__ uint64_t key_at(const DraftTopkMergeParams& p, int64_t row, int shard, int i) {
  const int64_t n_rows = int64_t{p.batch} * p.depth;
  const int64_t at = (shard * n_rows + row) * p.k + i;
  const int id = p.shard_ids[at];
  return id < 0 ? device::kNoLogit : device::logit_key(p.shard_logits[at], id);
}

__device__ int entries_below(const DraftTopkMergeParams& p, int64_t row, int shard, uint64_t key) {
  int low = 0, high = p.k;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (key_at(p, row, shard, middle) < key)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

__device__ float merged_log_z(const DraftTopkMergeParams& p, int64_t row) {
  const int64_t n_rows = int64_t{p.batch} * p.depth;
  float peak = -INFINITY;
  for (int s = 0; s < p.n_shards; ++s) peak = fmaxf(peak, p.shard_log_z[s * n_rows + row]);
  if (peak == -INFINITY) return peak;
  double total = 0.0;
  for (int s = 0; s < p.n_shards; ++s) total += exp(double{p.shard_log_z[s * n_rows + row]} - peak);
  return static_cast<float>(peak + log(total));
}

// Grid: (depths, or one CTA where there are none; requests).
__global__ void __launch_bounds__(kThreads) draft_topk_merge_kernel(const DraftTopkMergeParams p) {
  device::wait_for_previous();
  device::let_next_start();
  const int request = blockIdx.y;
  int bad = 0;
  for (int s = threadIdx.x; s < p.n_shards; s += kThreads)
    bad |= p.shard_status[int64_t{s} * p.batch + request];
  bad = __syncthreads_or(bad);
  if (blockIdx.x == 0 && threadIdx.x == 0) p.status[request] = bad != 0;
  if (p.depth == 0) return;

  __shared__ float log_z;
  __shared__ int n_entries;
  const int64_t row = int64_t{request} * p.depth + blockIdx.x;
  if (threadIdx.x == 0) {
    n_entries = 0;
    log_z = bad ? -INFINITY : merged_log_z(p, row);
    if (p.log_z) p.log_z[row] = log_z;
  }
  __syncthreads();
  for (int i = threadIdx.x; !bad && i < p.n_shards * p.k; i += kThreads) {
    const int shard = i / p.k;
    const uint64_t key = key_at(p, row, shard, i % p.k);
    if (key == device::kNoLogit) continue;
    atomicAdd(&n_entries, 1);
    int place = i % p.k;
    for (int s = 0; s < p.n_shards && place < p.k; ++s)
      if (s != shard) place += entries_below(p, row, s, key);
    if (place >= p.k) continue;
    p.logp[row * p.k + place] = device::key_logit(key) - log_z;
    p.ids[row * p.k + place] = device::key_id(key);
  }
  __syncthreads();
  for (int i = n_entries + threadIdx.x; i < p.k; i += kThreads) {
    p.logp[row * p.k + i] = -INFINITY;
    p.ids[row * p.k + i] = -1;
  }
}

}  // namespace

void draft_topk_merge(const DraftTopkMergeParams& p, Stream stream) {
  if (p.batch == 0) return;
  require_at_most("draft_topk_merge", "batch", p.batch, kMostGridYZ);
  launch(draft_topk_merge_kernel,
         {.grid = dim3(p.depth > 0 ? p.depth : 1, p.batch), .block = dim3(kThreads)}, stream, p);
}

}  // namespace kdt::cuda
