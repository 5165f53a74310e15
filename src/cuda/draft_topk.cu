// A cluster of CTAs per row of logits; the row is read once from memory and once more from L1.
//
//  1. Every warp finds the maximum of its share and its q-th largest lane maximum. The cluster
//     exchanges them; the j-th largest of the latter, q * j >= k, is a threshold that at least k
//     logits reach and, since the shares are alike, few more do.
//  2. With the row's maximum and the threshold known, the second pass adds up exp(logit - maximum)
//     and sends the logits that reach the threshold to the first CTA of the cluster.
//  3. That CTA orders them and writes the best k.
// Where more logits reach the threshold than the list holds (many equal logits, or shares that are
// not alike after all), the k-th key is found by bisection, and exactly k are sent.
//
// A second kernel clears the requests of which a row held NaN or +inf.
#include "cuda/device/cluster_row.cuh"
#include "cuda/device/dependency.cuh"
#include "cuda/device/sort.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

using device::kPiece;
using device::kRowThreads;

struct TopkTask {
  DraftTopkParams p;
  int32_t* bad_rows;  // [B, L]
  device::Quota quota;
  int list_size;  // a power of two, at least 2 k
};

struct TopkShared {
  device::RowShared row;
  float log_z;
};

template <typename T>
class TopkRow {
 public:
  __device__ TopkRow(const TopkTask& task, int64_t row, TopkShared& shared, uint64_t* list)
      : task_(task),
        p_(task.p),
        index_(row),
        s_(shared),
        list_(list),
        row_(static_cast<const T*>(p_.logits) + row * p_.row_stride, p_.vocab, shared.row, list,
             task.list_size) {}

  __device__ void run() {
    const uint32_t max_key = row_.find_maximum(task_.quota.q);
    const bool bad = max_key == device::kBadRow;
    if (row_.is_first_cta() && threadIdx.x == 0) task_.bad_rows[index_] = bad;
    if (bad) return;
    const float peak = device::value_of_key(max_key);
    if (peak == -INFINITY) {
      if (row_.is_first_cta()) write_rest(0, -INFINITY);
      return;
    }
    const float threshold = row_.find_threshold(task_.quota.j);
    int n_sent = 0;
    const double here = sum_and_send(peak, threshold, &n_sent);
    auto [total, n] = row_.totals(here, n_sent, 0);
    if (n > task_.list_size) {
      row_.send_up_to(row_.kth_key(p_.k));
      n = min(n, p_.k);
    }
    if (row_.is_first_cta()) finish(n, peak, total);
  }

 private:
  // Returns this thread's share of sum exp(logit - peak), from sums of eight: half an ulp of fp32.
  __device__ double sum_and_send(float peak, float threshold, int* n_sent) const {
    double sum = 0.0;
    row_.template for_each<device::kWarmBatch>([&](const float(&x)[kPiece], int first) {
      float e[kPiece];
#pragma unroll
      for (int i = 0; i < kPiece; ++i) e[i] = expf(x[i] - peak);
      sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
      if (!(device::largest(x) >= threshold)) return;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if (!(x[i] >= threshold) || x[i] == -INFINITY) continue;
        row_.send(device::logit_key(x[i], first + i));
        ++*n_sent;
      }
    });
    return sum;
  }

  // First CTA: list[0 .. n) holds the best k and possibly more.
  __device__ void finish(int n, float peak, double total) {
    if (threadIdx.x == kRowThreads - 1) s_.log_z = static_cast<float>(peak + log(total));
    if (n <= kRowThreads) {
      const uint64_t key =
          static_cast<int>(threadIdx.x) < n ? list_[threadIdx.x] : device::kNoLogit;
      const int place = key == device::kNoLogit ? p_.k : device::count_below(list_, n, key);
      __syncthreads();
      if (place < p_.k) write_entry(place, key);
    } else {
      int size = 2 * kRowThreads;
      while (size < n) size *= 2;
      for (int i = n + threadIdx.x; i < size; i += kRowThreads) list_[i] = device::kNoLogit;
      device::bitonic_sort(list_, size);
      for (int i = threadIdx.x; i < min(n, p_.k); i += kRowThreads) write_entry(i, list_[i]);
    }
    write_rest(n, s_.log_z);
  }

  __device__ void write_entry(int place, uint64_t key) const {
    const float logit = device::key_logit(key);
    p_.logp[index_ * p_.k + place] = p_.shard ? logit : logit - s_.log_z;
    p_.ids[index_ * p_.k + place] = p_.first_id + device::key_id(key);
  }

  __device__ void write_rest(int n, float log_z) const {
    for (int i = n + threadIdx.x; i < p_.k; i += kRowThreads) {
      p_.logp[index_ * p_.k + i] = -INFINITY;
      p_.ids[index_ * p_.k + i] = -1;
    }
    if (threadIdx.x == 0 && p_.log_z) p_.log_z[index_] = log_z;
  }

  const TopkTask& task_;
  const DraftTopkParams& p_;
  const int64_t index_;
  TopkShared& s_;
  uint64_t* const list_;
  device::ClusterRow<T> row_;
};

template <typename T>
__global__ void __launch_bounds__(kRowThreads, 2)
    draft_topk_kernel(const TopkTask task, int cluster) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) uint64_t list[];
  __shared__ TopkShared shared;
  TopkRow<T>(task, blockIdx.x / cluster, shared, list).run();
}

constexpr int kStatusThreads = 256;

__global__ void __launch_bounds__(kStatusThreads) draft_topk_status_kernel(const TopkTask task) {
  device::wait_for_previous();
  device::let_next_start();
  const DraftTopkParams& p = task.p;
  const int64_t first_row = int64_t{blockIdx.x} * p.depth;
  int bad = 0;
  for (int d = threadIdx.x; d < p.depth; d += kStatusThreads) bad |= task.bad_rows[first_row + d];
  bad = __syncthreads_or(bad);
  if (threadIdx.x == 0) p.status[blockIdx.x] = bad != 0;
  if (!bad) return;
  for (int64_t i = threadIdx.x; i < int64_t{p.depth} * p.k; i += kStatusThreads) {
    p.logp[first_row * p.k + i] = -INFINITY;
    p.ids[first_row * p.k + i] = -1;
  }
  for (int d = threadIdx.x; p.log_z && d < p.depth; d += kStatusThreads)
    p.log_z[first_row + d] = -INFINITY;
}

}  // namespace

size_t draft_topk_workspace(const DraftTopkParams& largest) {
  return static_cast<size_t>(largest.batch) * largest.depth * sizeof(int32_t);
}

void draft_topk(const DraftTopkParams& p, Stream stream) {
  if (p.batch == 0) return;
  const int cluster = p.vocab <= device::kSmallVocab ? 1 : device::kMaxCluster;
  const TopkTask task = {.p = p,
                         .bad_rows = static_cast<int32_t*>(p.workspace.data),
                         .quota = device::quota_of(p.k, device::kRowWarps * cluster),
                         .list_size = p.k <= 64 ? 1024 : 4096};
  const LaunchShape shape = {.grid = dim3(p.batch * p.depth * cluster),
                             .block = dim3(kRowThreads),
                             .shared_bytes = task.list_size * sizeof(uint64_t),
                             .cluster = cluster};
  if (p.depth > 0) {
    if (p.dtype == DType::kBF16)
      launch(draft_topk_kernel<__nv_bfloat16>, shape, stream, task, cluster);
    else if (p.dtype == DType::kF16)
      launch(draft_topk_kernel<__half>, shape, stream, task, cluster);
    else
      launch(draft_topk_kernel<float>, shape, stream, task, cluster);
  }
  launch(draft_topk_status_kernel, {.grid = dim3(p.batch), .block = dim3(kStatusThreads)}, stream,
         task);
}

}  // namespace kdt::cuda
