// One launch copies the accepted rows of every layer and gathers their features. Rows are cut into
// stripes, and a warp moves one stripe of one row at a time, several on their way at once. A CTA
// has one stripe of one layer or feature, of up to kRows accepted rows of one request, so that a
// commit of 16 rows over 61 layers spreads over all multiprocessors; or a run of stripes where
// there are more than the GPU takes at a time.
#include <algorithm>

#include "base/rounding.h"
#include "cuda/device/dependency.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/device/vectors.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kRows = 64;    // accepted rows of a CTA
constexpr int kStripe = 72;  // at most, in accesses; one MLA row in bf16 has 72 of 16 bytes
constexpr int kPerLane = ceil_div(kStripe, 32);
constexpr int kItems = 3;        // stripes that a warp has on their way
constexpr int kUsualCtas = 528;  // of a launch: four on each of 132 multiprocessors

// Rows of one kind, KV or features, cut into stripes. Strides are in bytes.
struct Source {
  const char* rows = nullptr;
  char* to = nullptr;
  int64_t row_bytes = 0;
  int64_t plane_stride = 0;     // from layer to layer, or feature to feature
  int64_t to_plane_stride = 0;  // likewise where rows go
  int64_t to_row_stride = 0;
  int n_planes = 0;
  int n_stripes = 0;  // per plane
};

struct CommitTask {
  KvCommitParams p;
  Source kv, features;
  int units_per_cta;
};

// A stripe of one plane, in units of kBytes.
template <int kBytes>
struct Stripe {
  using T = device::Bytes<kBytes>;

  __device__ Stripe(const Source& source, int index) {
    const int plane = index / source.n_stripes, first = index % source.n_stripes * kStripe;
    width = min(kStripe, static_cast<int>(source.row_bytes / kBytes) - first);
    from = reinterpret_cast<const T*>(source.rows + plane * source.plane_stride) + first;
    to = reinterpret_cast<T*>(source.to + plane * source.to_plane_stride) + first;
    from_stride = source.row_bytes / kBytes;
    to_stride = source.to_row_stride / kBytes;
  }

  const T* from;
  T* to;
  int64_t from_stride, to_stride;  // between rows
  int width;
};

// Number `unit` of all stripes: the KV's of all layers come first, then the features'.
template <int kBytes>
__device__ Stripe<kBytes> stripe_of(const CommitTask& task, int n_kv, int unit) {
  return unit < n_kv ? Stripe<kBytes>(task.kv, unit) : Stripe<kBytes>(task.features, unit - n_kv);
}

// Brings what this CTA will probably read towards the L2 cache: where rows go, and in small calls
// the stripe itself of the first rows, as the nodes of likely paths have low ids. Nothing here is
// relied upon: the kernel before may still be writing, and what is read bypasses the L1 cache.
template <int kBytes>
__device__ void prefetch(const CommitTask& task, const Stripe<kBytes>& stripe, int request) {
  constexpr int kLine = 128, kFirstRows = 16;
  const KvCommitParams& p = task.p;
  if (threadIdx.x == 0 && p.features) device::prefetch_l2(p.feature_offset + request);
  if (threadIdx.x == 0 && p.n_layers > 0) {
    const unsigned block = static_cast<unsigned>(__ldcg(p.rows.prefix_len + request)) / kPageTokens;
    if (block < static_cast<unsigned>(p.rows.max_blocks))
      device::prefetch_l2(p.rows.block_table + int64_t{request} * p.rows.max_blocks + block);
  }
  if (gridDim.x * gridDim.y * gridDim.z > kUsualCtas / 2) return;
  const int lines = ceil_div(stripe.width * kBytes, kLine);
  const int first_row = __ldcg(p.rows.row_offset + request), row = threadIdx.x / lines;
  if (row >= min(kFirstRows, p.max_accepted) || first_row < 0) return;
  if (first_row + row < p.rows.n_rows)
    device::prefetch_l2(
        reinterpret_cast<const char*>(stripe.from + (first_row + row) * stripe.from_stride) +
        threadIdx.x % lines * kLine);
}

// The stripes of one CTA: `n_units` from `first_unit` on, of n_rows accepted rows.
template <int kBytes>
struct Run {
  const CommitTask& task;
  const int n_kv, first_unit, n_items, n_rows;
  const float inverse_rows;
  const int* from_row;    // [n_rows]
  const int* feature_to;  // [n_rows]
  const int64_t* kv_to;   // [n_rows]

  // An item is a row of a stripe.
  struct Place {
    int unit, row;
  };
  __device__ Place place_of(int item) const {
    // item / n_rows, far from where fp32 could be off by one.
    const int unit = static_cast<int>((static_cast<float>(item) + 0.5f) * inverse_rows);
    return {first_unit + unit, item - unit * n_rows};
  }

  using Values = typename Stripe<kBytes>::T[kItems][kPerLane];

  // Of kItems items from `first` on, kWarps apart, by a full warp.
  __device__ void load(int first, Values& values) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int item = first + k * kWarps;
      if (item >= n_items) break;
      const auto [unit, row] = place_of(item);
      const auto stripe = stripe_of<kBytes>(task, n_kv, unit);
      const auto* from = stripe.from + from_row[row] * stripe.from_stride;
#pragma unroll
      for (int j = 0; j < kPerLane; ++j)
        if (lane + 32 * j < stripe.width) values[k][j] = from[lane + 32 * j];
    }
  }

  __device__ void store(int first, const Values& values) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int item = first + k * kWarps;
      if (item >= n_items) break;
      const auto [unit, row] = place_of(item);
      const auto stripe = stripe_of<kBytes>(task, n_kv, unit);
      auto* to = stripe.to + (unit < n_kv ? kv_to[row] : feature_to[row]) * stripe.to_stride;
#pragma unroll
      for (int j = 0; j < kPerLane; ++j)
        if (lane + 32 * j < stripe.width) to[lane + 32 * j] = values[k][j];
    }
  }

  __device__ void copy_scales() const {
    const KvCommitParams& p = task.p;
    for (int item = threadIdx.x; item < n_items; item += kThreads) {
      const auto [unit, row] = place_of(item);
      if (unit >= n_kv || unit % task.kv.n_stripes != 0) continue;
      const int64_t layer = unit / task.kv.n_stripes;
      p.page_scales[layer * p.n_pages * kPageTokens + kv_to[row]] =
          p.tail_scales[layer * p.rows.n_rows + from_row[row]];
    }
  }
};

// Grid: (runs of stripes; chunks of kRows rows; requests). kBytes divides every row, stride and
// base address of both kinds.
template <int kBytes>
__global__ void __launch_bounds__(kThreads, 4)
    kv_commit_kernel(const __grid_constant__ CommitTask task) {
  const KvCommitParams& p = task.p;
  const int thread = threadIdx.x, request = blockIdx.z, begin = blockIdx.y * kRows;
  const int n_kv = task.kv.n_planes * task.kv.n_stripes;
  const int first_unit = blockIdx.x * task.units_per_cta;
  const int n_units =
      min(task.units_per_cta, n_kv + task.features.n_planes * task.features.n_stripes - first_unit);
  prefetch(task, stripe_of<kBytes>(task, n_kv, first_unit), request);
  device::wait_for_previous();
  device::let_next_start();

  // Loaded together, whatever n_accepted turns out to be: one trip to memory instead of three.
  const int i = begin + thread;
  const int n_accepted = p.n_accepted[request], first_row = p.rows.row_offset[request];
  const int prefix = p.n_layers > 0 ? p.rows.prefix_len[request] : 0;
  const int feature_row = p.features ? p.feature_offset[request] : 0;
  const int node = p.accepted && thread < kRows && i < p.max_accepted
                       ? p.accepted[int64_t{request} * p.max_accepted + i]
                       : i;
  const int n_rows = min(kRows, n_accepted - begin);
  if (n_rows <= 0) return;
  __shared__ int from_row[kRows], feature_to[kRows];
  __shared__ int64_t kv_to[kRows];
  int page = 0;
  if (thread < n_rows) {
    from_row[thread] = first_row + node;
    feature_to[thread] = feature_row + i;
    if (p.n_layers > 0)
      page = p.rows.block_table[int64_t{request} * p.rows.max_blocks + (prefix + i) / kPageTokens];
  }
  __syncthreads();
  const Run<kBytes> run = {
      task,     n_kv,       first_unit, n_units * n_rows, n_rows, 1.0f / static_cast<float>(n_rows),
      from_row, feature_to, kv_to};
  typename Run<kBytes>::Values values;
  run.load(thread / 32, values);
  // The page came while these loads started.
  if (thread < n_rows) kv_to[thread] = int64_t{page} * kPageTokens + (prefix + i) % kPageTokens;
  __syncthreads();
  for (int item = thread / 32; item < run.n_items; item += kWarps * kItems) {
    if (item >= kWarps) run.load(item, values);
    run.store(item, values);
  }
  if (p.tail_scales) run.copy_scales();
}

CommitTask make_task(const KvCommitParams& p) {
  CommitTask task = {.p = p};
  const auto element = static_cast<int64_t>(dtype_bytes(p.dtype));
  const int64_t row_bytes = p.width * element, feature_bytes = int64_t{p.hidden} * 4;
  task.kv = {.rows = static_cast<const char*>(p.tail),
             .to = static_cast<char*>(p.pages),
             .row_bytes = row_bytes,
             .plane_stride = p.tail_layer_stride * element,
             .to_plane_stride = int64_t{p.n_pages} * kPageTokens * row_bytes,
             .to_row_stride = row_bytes,
             .n_planes = p.n_layers};
  if (p.features)
    task.features = {.rows = reinterpret_cast<const char*>(p.features),
                     .to = reinterpret_cast<char*>(p.features_out),
                     .row_bytes = feature_bytes,
                     .plane_stride = p.feature_stride * 4,
                     .to_plane_stride = feature_bytes,
                     .to_row_stride = p.n_features * feature_bytes,
                     .n_planes = p.n_features};
  return task;
}

// The widest access, 16 bytes at most, that divides every row, stride and base address.
int width_of(const CommitTask& task) {
  uint64_t bits = 16;
  for (const Source* source : {&task.kv, &task.features}) {
    if (source->n_planes == 0) continue;
    bits |= reinterpret_cast<uint64_t>(source->rows) | reinterpret_cast<uint64_t>(source->to) |
            static_cast<uint64_t>(source->row_bytes) | static_cast<uint64_t>(source->plane_stride);
  }
  return static_cast<int>(bits & -bits);
}

}  // namespace

void kv_commit(const KvCommitParams& p, Stream stream) {
  require_at_most("kv_commit", "max_accepted", p.max_accepted, kMostGridYZ * kRows);
  require_at_most("kv_commit", "n_requests", p.rows.n_requests, kMostGridYZ);
  CommitTask task = make_task(p);
  const int width = width_of(task);
  for (Source* source : {&task.kv, &task.features})
    source->n_stripes = static_cast<int>(ceil_div(source->row_bytes / width, kStripe));
  const int units =
      task.kv.n_planes * task.kv.n_stripes + task.features.n_planes * task.features.n_stripes;
  if (units == 0 || p.rows.n_requests == 0 || p.max_accepted == 0) return;
  const int chunks = ceil_div(p.max_accepted, kRows);
  const auto runs = static_cast<int>(
      std::clamp<int64_t>(kUsualCtas / (int64_t{chunks} * p.rows.n_requests), 1, units));
  task.units_per_cta = ceil_div(units, runs);
  const LaunchShape shape = {
      .grid = dim3(ceil_div(units, task.units_per_cta), chunks, p.rows.n_requests),
      .block = dim3(kThreads)};
  switch (width) {
    case 16:
      return launch(kv_commit_kernel<16>, shape, stream, task);
    case 8:
      return launch(kv_commit_kernel<8>, shape, stream, task);
    case 4:
      return launch(kv_commit_kernel<4>, shape, stream, task);
    case 2:
      return launch(kv_commit_kernel<2>, shape, stream, task);
    default:
      return launch(kv_commit_kernel<1>, shape, stream, task);
  }
}

}  // namespace kdt::cuda
