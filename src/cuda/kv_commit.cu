// One launch copies the accepted rows of every layer and gathers their features. A CTA moves one
// stripe (a range of columns of one layer or feature) of up to kRows accepted rows of one request,
// so that a commit of 16 rows over 61 layers spreads over all multiprocessors.
#include <algorithm>

#include "cuda/device/dependency.cuh"
#include "cuda/device/vectors.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kRows = 64;           // accepted rows of a CTA
constexpr int kStripeBytes = 1152;  // at most; one MLA row in bf16
constexpr int kLoadsInFlight = 4;   // per thread

// Rows of one kind, KV or features, cut into stripes. Strides are in bytes.
struct Source {
  const char* rows = nullptr;
  int64_t row_bytes = 0;
  int64_t plane_stride = 0;  // from layer to layer, or feature to feature
  int n_planes = 0;
  int n_stripes = 0;  // per plane
};

struct CommitTask {
  KvCommitParams p;
  Source kv, features;
  int64_t page_bytes;
};

int stripes_of(int64_t row_bytes) {
  return static_cast<int>((row_bytes + kStripeBytes - 1) / kStripeBytes);
}

// Copies columns [first, last) of rows i = begin .. end - 1 from from(i) to to(i), in units of T.
template <typename T, typename From, typename To>
__device__ void copy_stripe(int begin, int end, int first, int last, const From& from,
                            const To& to) {
  const int width = last - first;
  const int n = (end - begin) * width;
  for (int start = threadIdx.x; start < n; start += kThreads * kLoadsInFlight) {
    T values[kLoadsInFlight];
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      const int at = start + j * kThreads;
      if (at < n) values[j] = from(begin + at / width)[first + at % width];
    }
#pragma unroll
    for (int j = 0; j < kLoadsInFlight; ++j) {
      const int at = start + j * kThreads;
      if (at < n) to(begin + at / width)[first + at % width] = values[j];
    }
  }
}

// Grid: (KV stripes of all layers, then feature stripes; chunks of kRows rows; requests). kBytes
// divides every row, stride and base address of both kinds.
template <int kBytes>
__global__ void __launch_bounds__(kThreads) kv_commit_kernel(const CommitTask task) {
  using T = device::Bytes<kBytes>;
  device::wait_for_previous();
  device::let_next_start();
  const KvCommitParams& p = task.p;
  const int request = blockIdx.z, begin = blockIdx.y * kRows, i = begin + threadIdx.x;
  // Loaded together, whatever n_accepted turns out to be: one trip to memory instead of three.
  const int n_accepted = p.n_accepted[request], prefix = p.rows.prefix_len[request];
  const int first_row = p.rows.row_offset[request];
  const int node = p.accepted && threadIdx.x < kRows && i < p.max_accepted
                       ? p.accepted[int64_t{request} * p.max_accepted + i]
                       : i;
  const int end = min(begin + kRows, n_accepted);
  if (begin >= end) return;
  const int n_kv = task.kv.n_planes * task.kv.n_stripes;
  const bool is_kv = static_cast<int>(blockIdx.x) < n_kv;
  const Source& source = is_kv ? task.kv : task.features;
  const int unit = is_kv ? blockIdx.x : blockIdx.x - n_kv;
  const int plane = unit / source.n_stripes, stripe = unit % source.n_stripes;

  __shared__ int64_t from_row[kRows], to_row[kRows];  // in units of T
  if (i < end) {
    from_row[threadIdx.x] =
        (plane * source.plane_stride + int64_t{first_row + node} * source.row_bytes) / kBytes;
    int64_t to;
    if (is_kv) {
      const int position = prefix + i;
      const int64_t page =
          p.rows.block_table[int64_t{request} * p.rows.max_blocks + position / kPageTokens];
      to = (int64_t{plane} * p.n_pages + page) * task.page_bytes +
           position % kPageTokens * source.row_bytes;
      if (p.tail_scales && stripe == 0)
        p.page_scales[(int64_t{plane} * p.n_pages + page) * kPageTokens + position % kPageTokens] =
            p.tail_scales[int64_t{plane} * p.rows.n_rows + first_row + node];
    } else {
      to = ((int64_t{p.feature_offset[request]} + i) * p.n_features + plane) * source.row_bytes;
    }
    to_row[threadIdx.x] = to / kBytes;
  }
  __syncthreads();
  const T* from = reinterpret_cast<const T*>(source.rows);
  T* to = reinterpret_cast<T*>(is_kv ? static_cast<char*>(p.pages)
                                     : reinterpret_cast<char*>(p.features_out));
  const int stripe_units = kStripeBytes / kBytes;
  const int first = stripe * stripe_units;
  const int last = min(first + stripe_units, static_cast<int>(source.row_bytes / kBytes));
  copy_stripe<T>(
      begin, end, first, last, [&](int i) { return from + from_row[i - begin]; },
      [&](int i) { return to + to_row[i - begin]; });
}

// The largest power of two up to 16 that divides them all.
int common_width(std::initializer_list<uint64_t> values) {
  uint64_t bits = 16;
  for (const uint64_t value : values) bits |= value;
  return static_cast<int>(bits & -bits);
}

CommitTask make_task(const KvCommitParams& p) {
  CommitTask task = {.p = p};
  const auto element = static_cast<int64_t>(dtype_bytes(p.dtype));
  task.kv = {.rows = static_cast<const char*>(p.tail),
             .row_bytes = p.width * element,
             .plane_stride = p.tail_layer_stride * element,
             .n_planes = p.n_layers,
             .n_stripes = stripes_of(p.width * element)};
  task.page_bytes = task.kv.row_bytes * kPageTokens;
  if (p.features)
    task.features = {.rows = reinterpret_cast<const char*>(p.features),
                     .row_bytes = int64_t{p.hidden} * 4,
                     .plane_stride = p.feature_stride * 4,
                     .n_planes = p.n_features,
                     .n_stripes = stripes_of(int64_t{p.hidden} * 4)};
  return task;
}

int width_of(const CommitTask& task) {
  const auto address = [](const void* x) { return reinterpret_cast<uint64_t>(x); };
  uint64_t widths[8] = {};
  if (task.kv.n_planes > 0) {
    widths[0] = address(task.kv.rows);
    widths[1] = task.kv.row_bytes;
    widths[2] = task.kv.plane_stride;
    widths[3] = address(task.p.pages);
  }
  if (task.features.n_planes > 0) {
    widths[4] = address(task.features.rows);
    widths[5] = task.features.row_bytes;
    widths[6] = task.features.plane_stride;
    widths[7] = address(task.p.features_out);
  }
  return common_width(
      {widths[0], widths[1], widths[2], widths[3], widths[4], widths[5], widths[6], widths[7]});
}

}  // namespace

void kv_commit(const KvCommitParams& p, Stream stream) {
  const CommitTask task = make_task(p);
  const int units =
      task.kv.n_planes * task.kv.n_stripes + task.features.n_planes * task.features.n_stripes;
  if (units == 0 || p.rows.n_requests == 0 || p.max_accepted == 0) return;
  const LaunchShape shape = {
      .grid = dim3(units, (p.max_accepted + kRows - 1) / kRows, p.rows.n_requests),
      .block = dim3(kThreads)};
  switch (width_of(task)) {
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
