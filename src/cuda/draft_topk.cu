// Two kernels. The first: a cluster of CTAs per row of logits, which is read from memory once.
//
//  1. A CTA brings its part of the row to shared memory. Every warp finds the maximum of its share
//     and its q-th largest lane maximum, and sends the latter to the whole cluster.
//  2. While those travel the CTA adds up its exponentials relative to its own maximum.
//  3. The j-th largest of what the warps sent, q * j >= k, is a threshold that at least k logits of
//     the row reach and, since the shares are alike, few more do. Those go to the CTA's list; where
//     they do not fit (many equal logits, or shares that are not alike after all), its best k.
//
// The second: a CTA per row orders the lists and writes the best k. It also sees whether any row of
// its request held NaN or +inf.
#include <algorithm>

#include "cuda/device/dependency.cuh"
#include "cuda/device/remote.cuh"
#include "cuda/device/sort.cuh"
#include "cuda/device/threshold.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

using device::kAllLanes;
using device::kBadRow;
using device::kPiece;
using device::kRowThreads;
using device::kRowWarps;
using device::Piece;

constexpr int kStagedBytes = 80 << 10;  // of a part, in shared memory; the rest is read again
constexpr int32_t kBad = -1;            // a part's count: there is NaN or +inf
constexpr float kLog2E = 1.442695041f;

// What a CTA found in its part of a row: the sum of exp(logit - peak), and the length of its list.
struct alignas(16) Part {
  double sum;
  float peak;  // the largest logit
  int32_t count;
};

struct TopkTask {
  DraftTopkParams p;
  Part* parts;      // [B, L, cluster]
  uint64_t* lists;  // [B, L, cluster, list_size]
  device::Quota quota;
  int cluster, list_size;
  int n_staged;  // pieces of a lane in shared memory
};

struct PartShared {
  alignas(16) uint32_t kth[device::kMaxRowWarps];  // of all the cluster's warps
  device::MBarrier arrived;                        // of kth
  uint32_t warp_max[kRowWarps];
  double warp_sum[kRowWarps];
  uint32_t threshold;
  int n_listed;
};

// One CTA's part of a row. All threads call the members together.
template <typename T>
class PartOfRow {
 public:
  __device__ PartOfRow(const TopkTask& task, PartShared& shared, Piece<T>* staged)
      : task_(task),
        s_(shared),
        rank_(static_cast<int>(blockIdx.x)),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<const T*>(task.p.logits) + blockIdx.y * task.p.row_stride, task.p.vocab,
             rank_ * kRowWarps + warp_, task.cluster, task.n_staged, staged),
        part_(int64_t{blockIdx.y} * task.cluster + blockIdx.x),
        list_(task.lists + part_ * task.list_size) {}

  __device__ void run() {
    if (threadIdx.x == 0) {
      s_.n_listed = 0;
      device::expect_arrival(&s_.arrived, task_.cluster * kRowWarps * sizeof(uint32_t));
    }
    device::cluster_arrive();
    row_.stage();
    const device::WarpMaxima maxima = device::warp_maxima(row_, task_.quota.q);
    if (lane_ == 0) s_.warp_max[warp_] = maxima.max;
    device::cluster_wait();  // every CTA's barrier is set up
    if (task_.cluster == 1)  // a launch without clusters has no remote stores
      s_.kth[warp_] = maxima.qth;
    else if (lane_ < task_.cluster)
      device::send(&s_.kth[rank_ * kRowWarps + warp_], maxima.qth, &s_.arrived, lane_);
    __syncthreads();
    const uint32_t max_key = __reduce_max_sync(kAllLanes, s_.warp_max[lane_ % kRowWarps]);
    const bool bad = max_key == kBadRow;
    Part part = {.peak = bad ? -INFINITY : device::value_of_key(max_key)};
    part.sum = sum_relative_to(part.peak);
    if (task_.cluster > 1) device::wait_arrival(&s_.arrived);
    list_from(device::find_threshold(s_.kth, task_.cluster * kRowWarps, task_.quota.j,
                                     &s_.threshold));
    __syncthreads();
    const bool too_many = s_.n_listed > task_.list_size;
    part.count = bad ? kBad : too_many ? task_.p.k : s_.n_listed;
    if (threadIdx.x == 0) task_.parts[part_] = part;
    if (too_many && !bad) list_best(task_.p.k);
  }

 private:
  // fp32 within a piece, float64 across pieces and lanes, in an order that depends on nothing else.
  __device__ double sum_relative_to(float peak) {
    if (peak == -INFINITY) return 0.0;
    double sum = 0.0;
    row_.for_each([&](const Piece<T>& piece, int) {
      float e[kPiece];
#pragma unroll
      for (int i = 0; i < kPiece; ++i)
        e[i] = device::exp2_estimate((device::to_float(piece.x[i]) - peak) * kLog2E);
      sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
    });
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane_ == 0) s_.warp_sum[warp_] = sum;
    __syncthreads();
    sum = s_.warp_sum[lane_ % kRowWarps];
    for (int step = kRowWarps / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  }

  // What does not fit is counted only.
  __device__ __forceinline__ void list(uint64_t key) {
    const int at = atomicAdd(&s_.n_listed, 1);
    if (at < task_.list_size) list_[at] = key;
  }

  __device__ void list_from(float threshold) {
    row_.for_each([&](const Piece<T>& piece, int first) {
      if (!(device::largest_or_nan(piece) >= threshold)) return;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float x = device::to_float(piece.x[i]);
        if (x >= threshold && x > -INFINITY) list(device::logit_key(x, first + i));
      }
    });
  }

  // Lists the best k instead, of which there are as many: those up to the smallest key that k
  // reach, found bit by bit.
  __device__ void list_best(int k) {
    uint64_t last = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 0; --bit) {
      if (bit < 32 && bit >= 32 - __clz(row_.vocab())) continue;
      const uint64_t limit = last | ((uint64_t{1} << bit) - 1);
      __syncthreads();
      if (threadIdx.x == 0) s_.n_listed = 0;
      int n = 0;
      row_.for_each_key([&](uint64_t key) { n += key <= limit; });
      n = __reduce_add_sync(kAllLanes, n);
      __syncthreads();
      if (lane_ == 0) atomicAdd(&s_.n_listed, n);
      __syncthreads();
      if (s_.n_listed < k) last |= uint64_t{1} << bit;
    }
    __syncthreads();
    if (threadIdx.x == 0) s_.n_listed = 0;
    __syncthreads();
    row_.for_each_key([&](uint64_t key) {
      if (key <= last) list(key);
    });
  }

  const TopkTask& task_;
  PartShared& s_;
  const int rank_, warp_, lane_;  // of the CTA in the cluster, the warp in it, the lane in that
  const device::StagedRow<T> row_;
  const int64_t part_;
  uint64_t* const list_;
};

// Grid: (the CTAs of a row, rows).
template <typename T>
__global__ void __launch_bounds__(kRowThreads, 3)
    part_kernel(const __grid_constant__ TopkTask task) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) char staged[];
  __shared__ PartShared shared;
  PartOfRow<T>(task, shared, reinterpret_cast<Piece<T>*>(staged)).run();
}

constexpr int kOrderThreads = 32 * device::kMaxCluster;

// log of the sum over the parts, by a full warp; lane i has part i.
__device__ float log_sum(const Part& part) {
  float peak = part.peak;
  for (int step = 16; step > 0; step /= 2)
    peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, step));
  if (peak == -INFINITY) return -INFINITY;
  double sum = part.sum * exp(double{part.peak} - peak);
  for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
  return static_cast<float>(peak + log(sum));
}

// The rows of one request lie together; blockIdx.x is the row, or the request without depths.
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const __grid_constant__ TopkTask task) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) uint64_t list[];
  __shared__ float log_z;
  const DraftTopkParams& p = task.p;
  const int thread = threadIdx.x, warp = thread / 32, lane = thread % 32, n_parts = task.cluster;
  const int64_t row = blockIdx.x, depth = max(p.depth, 1), request = row / depth;
  bool bad = false;
  for (int i = thread; i < p.depth * n_parts; i += kOrderThreads)
    bad |= task.parts[request * p.depth * n_parts + i].count == kBad;
  // Every warp looks at all parts' counts, and copies the list of one.
  const Part part =
      lane < n_parts && p.depth > 0 ? task.parts[row * n_parts + lane] : Part{0.0, -INFINITY, 0};
  bad = __syncthreads_or(bad);
  if (row % depth == 0 && thread == 0) p.status[request] = bad;
  if (p.depth == 0) return;
  const int n = bad ? 0 : __reduce_add_sync(kAllLanes, part.count);
  const int before = __reduce_add_sync(kAllLanes, lane < warp ? part.count : 0);
  const int here = bad ? 0 : __shfl_sync(kAllLanes, part.count, warp);
  for (int i = lane; i < here; i += 32)
    list[before + i] = task.lists[(row * n_parts + warp) * task.list_size + i];
  if (warp == device::kMaxCluster - 1) {
    const float sum = bad ? -INFINITY : log_sum(part);
    if (lane == 0) log_z = sum;
  }
  int size = kOrderThreads;
  while (size < n) size *= 2;
  for (int i = n + thread; i < size; i += kOrderThreads) list[i] = device::kNoLogit;
  __syncthreads();
  const auto write = [&](int place, uint64_t key) {
    const float logit = device::key_logit(key);
    p.logp[row * p.k + place] = p.shard ? logit : logit - log_z;
    p.ids[row * p.k + place] = p.first_id + device::key_id(key);
  };
  if (n <= kOrderThreads) {
    if (thread < n) {
      const int place = device::count_below(list, n, list[thread]);
      if (place < p.k) write(place, list[thread]);
    }
  } else {
    device::bitonic_sort(list, size);
    for (int i = thread; i < min(n, p.k); i += kOrderThreads) write(i, list[i]);
  }
  for (int i = n + thread; i < p.k; i += kOrderThreads) {
    p.logp[row * p.k + i] = -INFINITY;
    p.ids[row * p.k + i] = -1;
  }
  if (thread == 0 && p.log_z) p.log_z[row] = log_z;
}

int cluster_of(const DraftTopkParams& p) {
  return p.vocab <= device::kSmallVocab ? 1 : device::kMaxCluster;
}

// Entries of a CTA's list: k at least, and usually room for all that reach the threshold.
int list_size_of(const DraftTopkParams& p) {
  return p.k <= 64 ? 256 : p.k <= 256 ? 512 : 1024;
}

int64_t n_parts_of(const DraftTopkParams& p) {
  return int64_t{p.batch} * p.depth * cluster_of(p);
}

}  // namespace

size_t draft_topk_workspace(const DraftTopkParams& largest) {
  return static_cast<size_t>(n_parts_of(largest)) *
         (sizeof(Part) + list_size_of(largest) * sizeof(uint64_t));
}

void draft_topk(const DraftTopkParams& p, Stream stream) {
  if (p.batch == 0) return;
  const int cluster = cluster_of(p), n_rows = p.batch * p.depth;
  const int piece_bytes = kRowThreads * kPiece * static_cast<int>(dtype_bytes(p.dtype));
  const auto parts = static_cast<Part*>(p.workspace.data);
  const TopkTask task = {
      .p = p,
      .parts = parts,
      .lists = reinterpret_cast<uint64_t*>(parts + n_parts_of(p)),
      .quota = device::quota_of(p.k, kRowWarps * cluster),
      .cluster = cluster,
      .list_size = list_size_of(p),
      .n_staged = std::min(device::pieces_of(p.vocab, cluster), kStagedBytes / piece_bytes)};
  if (n_rows > 0) {
    const LaunchShape shape = {.grid = dim3(cluster, n_rows),
                               .block = dim3(kRowThreads),
                               .shared_bytes = static_cast<size_t>(task.n_staged) * piece_bytes,
                               .cluster = cluster};
    if (p.dtype == DType::kBF16)
      launch(part_kernel<__nv_bfloat16>, shape, stream, task);
    else if (p.dtype == DType::kF16)
      launch(part_kernel<__half>, shape, stream, task);
    else
      launch(part_kernel<float>, shape, stream, task);
  }
  launch(order_kernel,
         {.grid = dim3(n_rows > 0 ? n_rows : p.batch),
          .block = dim3(kOrderThreads),
          .shared_bytes = static_cast<size_t>(cluster) * task.list_size * sizeof(uint64_t)},
         stream, task);
}

}  // namespace kdt::cuda
