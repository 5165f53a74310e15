// One launch copies the accepted rows of every layer and gathers their features. Rows are cut into
// stripes, and a CTA has a run of stripes, mostly one, of up to kRows accepted rows of one request:
// a thread for every access of a stripe, kRowsAtOnce rows at a time, kItems of them on their way.
//
// At batch 1 what counts is the chain of trips to memory after the kernel before has ended: the
// request's numbers and accepted nodes, one load of a warp; then its rows and, beside them, the
// page. So stripes are known and lines are asked for before, and warps exchange by shuffling.
#include <algorithm>

#include "base/rounding.h"
#include "cuda/device/dependency.cuh"
#include "cuda/device/lanes.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/device/vectors.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kStripe = 72;  // at most, in accesses; one MLA row in bf16 has 72 of 16 bytes
constexpr int kRowsAtOnce = 4, kThreads = kStripe * kRowsAtOnce, kWarps = kThreads / 32;
constexpr int kItems = 4;             // accesses that a thread has on their way
constexpr int kNumbers = 4;           // of a request: the first lanes of a warp load them
constexpr int kRows = 32 - kNumbers;  // accepted rows of a CTA: the other lanes have their nodes
// Stripes of a launch: what is divided in fp32 stays below 2^20, where an inverse 2 ulp off is exact
// enough, and the bytes of a row below 2^32.
constexpr int kMostUnits = 1 << 15;
constexpr int kMostPages = 1 << 26;  // a token's place in them has 32 bits
constexpr int kUsualCtas = 528;      // of a launch: four on each of 132 multiprocessors
constexpr int kRowsAhead = 8;        // that small launches prefetch

// Rows of one kind, KV or features, cut into stripes.
struct Source {
  const char* rows = nullptr;
  char* to = nullptr;
  int64_t plane_bytes = 0;     // from layer to layer, or feature to feature
  int64_t to_plane_bytes = 0;  // likewise where rows go
  int64_t row_bytes = 0;
  int64_t to_row_bytes = 0;  // from row to row where rows go
  int n_planes = 0;
  int n_stripes = 0;  // of a plane
  float inverse_stripes = 0.0f;
};

struct CommitTask {
  KvCommitParams p;
  Source sources[2];  // KV, features
  int n_kv, n_units;  // stripes: the KV's of all layers come first, then the features'
  int units_per_cta;
  const int32_t* numbers[kNumbers];  // [B] each: n_accepted, row_offset, prefix_len, feature_offset
  int rows_per_request;              // on average
  int n_ahead;                       // rows to prefetch
};

// n / divisor, n below 2^20.
__device__ int divide(int n, float inverse) {
  return static_cast<int>((static_cast<float>(n) + 0.5f) * inverse);
}

// This thread's access in every row of a stripe.
struct Column {
  const char* from;
  char* to;
  uint32_t row_bytes, to_row_bytes;
  bool is_feature, valid;
};

template <int kBytes>
__device__ Column column_in(const Source& s, int stripe, bool is_feature) {
  const int plane = divide(stripe, s.inverse_stripes);
  const auto row_bytes = static_cast<uint32_t>(s.row_bytes);
  const uint32_t at = ((stripe - plane * s.n_stripes) * kStripe + threadIdx.x) * kBytes;
  return {s.rows + plane * s.plane_bytes + at,
          s.to + plane * s.to_plane_bytes + at,
          row_bytes,
          static_cast<uint32_t>(s.to_row_bytes),
          is_feature,
          at < row_bytes};
}

template <int kBytes>
__device__ Column column_of(const CommitTask& task, int unit) {
  return unit < task.n_kv ? column_in<kBytes>(task.sources[0], unit, false)
                          : column_in<kBytes>(task.sources[1], unit - task.n_kv, true);
}

// Where this lane's number is, null where there is none: the request's numbers, then the nodes of
// the accepted rows from `begin` on.
__device__ const int32_t* number_of(const CommitTask& task, int request, int begin, int lane) {
  const KvCommitParams& p = task.p;
  if (lane < kNumbers) return task.numbers[lane] ? task.numbers[lane] + request : nullptr;
  const int row = begin + lane - kNumbers;
  const bool there = p.accepted && row < p.max_accepted;
  return there ? p.accepted + int64_t{request} * p.max_accepted + row : nullptr;
}

// What a CTA, or for all CTAs of a request one of them, will probably read is asked for early.
// Nothing here is relied upon: the kernel before may still be writing, and lines come no nearer
// than to the L2 cache.
constexpr int kLine = 128;  // bytes

__device__ void prefetch_numbers(const KvCommitParams& p, const int32_t* number, int request,
                                 int thread) {
  constexpr int kInLine = kLine / sizeof(int32_t);
  if (thread <= kNumbers && number) device::prefetch_l2(number);
  if (p.n_layers > 0 && thread * kInLine < p.rows.max_blocks)
    device::prefetch_l2(p.rows.block_table + int64_t{request} * p.rows.max_blocks +
                        thread * kInLine);
}

template <int kBytes>
__device__ void prefetch_rows(const CommitTask& task, const Column& column, int request) {
  if (blockIdx.y > 0 || !column.valid || threadIdx.x * kBytes % kLine != 0) return;
  // Requests are mostly of one size, and the nodes of likely paths have low ids.
  const uint32_t first = request * task.rows_per_request;
#pragma unroll 1
  for (int row = threadIdx.y; row < task.n_ahead; row += kRowsAtOnce)
    device::prefetch_l2(column.from + uint64_t{first + row} * column.row_bytes);
}

// By lanes with a row: its number among those of a layer, in the tail and in the pages.
__device__ void copy_scales(const CommitTask& task, int first_unit, int n_units, int warp, int from,
                            uint32_t to) {
  const KvCommitParams& p = task.p;
  const Source& kv = task.sources[0];
#pragma unroll 1
  for (int unit = first_unit + warp; unit < min(first_unit + n_units, task.n_kv); unit += kWarps) {
    const int layer = divide(unit, kv.inverse_stripes);
    if (unit != layer * kv.n_stripes) continue;
    p.page_scales[int64_t{layer} * p.n_pages * kPageTokens + to] =
        p.tail_scales[int64_t{layer} * p.rows.n_rows + from];
  }
}

// Grid: (runs of stripes; chunks of kRows rows; requests). kBytes divides every row, stride and
// base address of both kinds. kOne: runs are of one stripe.
template <int kBytes, bool kOne>
__global__ void __launch_bounds__(kThreads, 4)
    kv_commit_kernel(const __grid_constant__ CommitTask task) {
  using T = device::Bytes<kBytes>;
  const KvCommitParams& p = task.p;
  const int request = blockIdx.z, begin = blockIdx.y * kRows;
  const int thread = threadIdx.y * kStripe + threadIdx.x, lane = thread % 32;
  const int own = lane - kNumbers;  // this lane's row
  const int first_unit = blockIdx.x * task.units_per_cta;
  const int n_units = kOne ? 1 : min(task.units_per_cta, task.n_units - first_unit);
  const int32_t* number = number_of(task, request, begin, lane);
  if (blockIdx.x + blockIdx.y == 0) prefetch_numbers(p, number, request, thread);
  const Column first_column = column_of<kBytes>(task, first_unit);
  prefetch_rows<kBytes>(task, first_column, request);
  device::wait_for_previous();
  device::let_next_start();

  const int value = number ? *number : own < 0 ? 0 : begin + own;
  const int n_rows = min(kRows, __shfl_sync(device::kAllLanes, value, 0) - begin);
  const int first_row = __shfl_sync(device::kAllLanes, value, 1);
  const int prefix = __shfl_sync(device::kAllLanes, value, 2) + begin;
  const int feature_row = __shfl_sync(device::kAllLanes, value, 3) + begin;
  int page = 0;
  if (own >= 0 && own < n_rows && first_unit < task.n_kv)
    page = p.rows.block_table[int64_t{request} * p.rows.max_blocks + (prefix + own) / kPageTokens];
  const auto slot_of = [&](int page_of_row, int row) {
    constexpr uint32_t kTokens = kPageTokens;
    return page_of_row * kTokens + static_cast<uint32_t>(prefix + row) % kTokens;
  };

  // An item is a row of a stripe.
  const int n_items = n_units * n_rows;
  const float inverse_rows = __fdividef(1.0f, static_cast<float>(n_rows));
#pragma unroll 1
  for (int first = 0;;) {
    T values[kItems];
    Column columns[kItems];
    int rows[kItems];
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int item = first + k * kRowsAtOnce + static_cast<int>(threadIdx.y);
      const bool inside = item < n_items;
      const int unit = !kOne && inside ? divide(item, inverse_rows) : 0;
      rows[k] = inside ? item - unit * n_rows : 0;
      columns[k] = kOne ? first_column : column_of<kBytes>(task, first_unit + unit);
      columns[k].valid &= inside;
      const uint32_t from = first_row + __shfl_sync(device::kAllLanes, value, kNumbers + rows[k]);
      if (columns[k].valid)
        values[k] = __ldcg(
            reinterpret_cast<const T*>(columns[k].from + uint64_t{from} * columns[k].row_bytes));
    }
    __syncwarp();  // the page is not waited for before all these loads are on their way
#pragma unroll
    for (int k = 0; k < kItems; ++k) {
      const int page_of_row = __shfl_sync(device::kAllLanes, page, kNumbers + rows[k]);
      const uint32_t to =
          columns[k].is_feature ? feature_row + rows[k] : slot_of(page_of_row, rows[k]);
      if (columns[k].valid)
        *reinterpret_cast<T*>(columns[k].to + uint64_t{to} * columns[k].to_row_bytes) = values[k];
    }
    first += kRowsAtOnce * kItems;
    if (first >= n_items) break;
  }
  if (p.tail_scales && own >= 0 && own < n_rows)
    copy_scales(task, first_unit, n_units, thread / 32, first_row + value, slot_of(page, own));
}

CommitTask make_task(const KvCommitParams& p) {
  CommitTask task = {
      .p = p,
      .numbers = {p.n_accepted, p.rows.row_offset, p.n_layers > 0 ? p.rows.prefix_len : nullptr,
                  p.features ? p.feature_offset : nullptr}};
  const auto element = static_cast<int64_t>(dtype_bytes(p.dtype));
  const int64_t row_bytes = p.width * element, feature_bytes = int64_t{p.hidden} * 4;
  task.sources[0] = {.rows = static_cast<const char*>(p.tail),
                     .to = static_cast<char*>(p.pages),
                     .plane_bytes = p.tail_layer_stride * element,
                     .to_plane_bytes = int64_t{p.n_pages} * kPageTokens * row_bytes,
                     .row_bytes = row_bytes,
                     .to_row_bytes = row_bytes,
                     .n_planes = p.n_layers};
  if (p.features)
    task.sources[1] = {.rows = reinterpret_cast<const char*>(p.features),
                       .to = reinterpret_cast<char*>(p.features_out),
                       .plane_bytes = p.feature_stride * 4,
                       .to_plane_bytes = feature_bytes,
                       .row_bytes = feature_bytes,
                       .to_row_bytes = p.n_features * feature_bytes,
                       .n_planes = p.n_features};
  return task;
}

// The widest access, 16 bytes at most, that divides every row, stride and base address.
int width_of(const CommitTask& task) {
  uint64_t bits = 16;
  for (const Source& source : task.sources) {
    if (source.n_planes == 0) continue;
    bits |= reinterpret_cast<uint64_t>(source.rows) | reinterpret_cast<uint64_t>(source.to) |
            static_cast<uint64_t>(source.row_bytes | source.plane_bytes);
  }
  return static_cast<int>(bits & -bits);
}

template <int kBytes>
void launch_for(const CommitTask& task, const LaunchShape& shape, Stream stream) {
  launch(task.units_per_cta == 1 ? kv_commit_kernel<kBytes, true> : kv_commit_kernel<kBytes, false>,
         shape, stream, task);
}

}  // namespace

void kv_commit(const KvCommitParams& p, Stream stream) {
  require_at_most("kv_commit", "max_accepted", p.max_accepted, kMostGridYZ * kRows);
  require_at_most("kv_commit", "n_requests", p.rows.n_requests, kMostGridYZ);
  require_at_most("kv_commit", "n_pages", p.n_pages, kMostPages);
  CommitTask task = make_task(p);
  const int width = width_of(task);
  int64_t n_units = 0;
  for (Source& source : task.sources) {
    const int64_t n_stripes = ceil_div(source.row_bytes / width, int64_t{kStripe});
    source.n_stripes = static_cast<int>(n_stripes);
    source.inverse_stripes = 1.0f / static_cast<float>(std::max(n_stripes, int64_t{1}));
    n_units += source.n_planes * n_stripes;
  }
  require_at_most("kv_commit", "stripes of a token", n_units, kMostUnits);
  if (n_units == 0 || p.rows.n_requests == 0 || p.max_accepted == 0) return;
  task.n_units = static_cast<int>(n_units);
  task.n_kv = task.sources[0].n_planes * task.sources[0].n_stripes;
  const int chunks = ceil_div(p.max_accepted, kRows);
  const auto runs = static_cast<int>(
      std::clamp<int64_t>(kUsualCtas / (int64_t{chunks} * p.rows.n_requests), 1, n_units));
  task.units_per_cta = ceil_div(task.n_units, runs);
  const int n_runs = ceil_div(task.n_units, task.units_per_cta);
  const bool small = int64_t{n_runs} * chunks * p.rows.n_requests <= kUsualCtas / 2;
  task.rows_per_request = p.rows.n_rows / p.rows.n_requests;
  task.n_ahead = small ? std::min({kRowsAhead, p.max_accepted, task.rows_per_request}) : 0;
  const LaunchShape shape = {.grid = dim3(n_runs, chunks, p.rows.n_requests),
                             .block = dim3(kStripe, kRowsAtOnce)};
  switch (width) {
    case 16:
      return launch_for<16>(task, shape, stream);
    case 8:
      return launch_for<8>(task, shape, stream);
    case 4:
      return launch_for<4>(task, shape, stream);
    case 2:
      return launch_for<2>(task, shape, stream);
    default:
      return launch_for<1>(task, shape, stream);
  }
}

}  // namespace kdt::cuda
