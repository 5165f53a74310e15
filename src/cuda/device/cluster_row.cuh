// One row of fp32 logits, worked on by a cluster of CTAs: maxima, thresholds, counts and sums. All
// threads of all CTAs of the cluster call the members together.
#pragma once

#include <cooperative_groups.h>

#include "cuda/device/threshold.cuh"

namespace kdt::cuda::device {

namespace cg = cooperative_groups;

struct RowShared {
  uint32_t warp_max[kMaxRowWarps];              // of the whole cluster, in every CTA
  alignas(16) uint32_t warp_kth[kMaxRowWarps];  // likewise
  double warp_sum[kRowWarps];
  int warp_count[kRowWarps];
  double cta_sum[2][kMaxCluster];  // of the whole cluster, in every CTA
  int cta_count[2][kMaxCluster];   // likewise
  int n_listed;                    // first CTA
  uint32_t threshold;
};

class ClusterRow {
 public:
  // list[list_size]: shared memory for the logits that reach the threshold, used in the first CTA.
  __device__ ClusterRow(const float* logits, int vocab, int n_staged, Piece<float>* staged,
                        RowShared& shared, uint64_t* list, int list_size)
      : cluster_(cg::this_cluster()),
        s_(shared),
        list_(list),
        list_size_(list_size),
        n_ctas_(static_cast<int>(cluster_.num_blocks())),
        rank_(static_cast<int>(cluster_.block_rank())),
        warp_(rank_ * kRowWarps + static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(logits, vocab, warp_, n_ctas_, n_staged, staged) {
    if (threadIdx.x == 0) s_.n_listed = 0;
  }

  // As StagedRow's. stage() comes before the first for_each or find_maximum.
  template <int kLoaded>
  __device__ void load(PieceWords<float> (&pieces)[kLoaded]) const {
    row_.load(pieces);
  }
  template <int kLoaded>
  __device__ void stage(const PieceWords<float> (&pieces)[kLoaded]) const {
    row_.stage(pieces);
  }
  template <int kLoaded, typename Fn>
  __device__ void for_each_loaded(const PieceWords<float> (&pieces)[kLoaded], const Fn& fn) const {
    row_.for_each_loaded(pieces, fn);
  }

  __device__ bool is_first_cta() const { return rank_ == 0; }
  __device__ int lane() const { return lane_; }
  __device__ int warp() const { return warp_; }  // in the cluster
  __device__ int n_warps() const { return n_ctas_ * kRowWarps; }
  __device__ int rank() const { return rank_; }  // of the CTA in the cluster
  __device__ int n_ctas() const { return n_ctas_; }
  __device__ void sync() const { cluster_.sync(); }

  // `member` of the same variable in the first CTA.
  template <typename U>
  __device__ U* in_first_cta(U* member) const {
    return cluster_.map_shared_rank(member, 0);
  }

  // Lane i < n_ctas stores value to the same variable in CTA i.
  template <typename U>
  __device__ void store_to_all(U* member, U value) const {
    if (lane_ < n_ctas_) *cluster_.map_shared_rank(member, lane_) = value;
  }

  // fn(piece, its first id) for this lane's pieces.
  template <typename Fn>
  __device__ __forceinline__ void for_each(const Fn& fn) const {
    row_.for_each(fn);
  }
  // fn(key) for this lane's logits above -inf; slow.
  template <typename Fn>
  __device__ __forceinline__ void for_each_key(const Fn& fn) const {
    row_.for_each_key(fn);
  }

  // Reads the row; returns its maximum as a key, kBadRow if it holds NaN or +inf. Keeps each warp's
  // q-th largest lane maximum for find_threshold.
  __device__ uint32_t find_maximum(int q) {
    const WarpMaxima maxima = warp_maxima(row_, q);
    cluster_.sync();  // every CTA runs: its shared memory may be written
    store_to_all(&s_.warp_max[warp_], maxima.max);
    store_to_all(&s_.warp_kth[warp_], maxima.qth);
    cluster_.sync();
    uint32_t row_max = 0;
    for (int i = lane_; i < n_warps(); i += 32) row_max = max(row_max, s_.warp_max[i]);
    return __reduce_max_sync(kAllLanes, row_max);
  }

  // The j-th largest of what find_maximum kept.
  __device__ float find_threshold(int j) {
    return device::find_threshold(s_.warp_kth, n_warps(), j, &s_.threshold);
  }

  // Appends to the list in the first CTA, visible there after the next sync; what does not fit is
  // counted only.
  __device__ void send(uint64_t key) const {
    const int at = atomicAdd(in_first_cta(&s_.n_listed), 1);
    if (at < list_size_) in_first_cta(list_)[at] = key;
  }

  // Empties the list. A barrier.
  __device__ void clear_list() {
    if (is_first_cta() && threadIdx.x == 0) s_.n_listed = 0;
    cluster_.sync();
  }

  struct Totals {
    double sum;
    int count;
  };
  // Sums over the threads of the cluster, in an order that depends on nothing else. `buffer`
  // alternates between calls. Also a barrier for what was sent before.
  __device__ Totals totals(double sum_here, int count_here, int buffer) {
    for (int step = 16; step > 0; step /= 2) sum_here += __shfl_xor_sync(kAllLanes, sum_here, step);
    count_here = __reduce_add_sync(kAllLanes, count_here);
    if (lane_ == 0) {
      s_.warp_sum[threadIdx.x / 32] = sum_here;
      s_.warp_count[threadIdx.x / 32] = count_here;
    }
    __syncthreads();
    if (threadIdx.x < 32) {
      Totals cta = {0.0, 0};
      for (int i = 0; i < kRowWarps; ++i) {
        cta.sum += s_.warp_sum[i];
        cta.count += s_.warp_count[i];
      }
      store_to_all(&s_.cta_sum[buffer][rank_], cta.sum);
      store_to_all(&s_.cta_count[buffer][rank_], cta.count);
    }
    cluster_.sync();
    Totals all = {0.0, 0};
    for (int i = 0; i < n_ctas_; ++i) {
      all.sum += s_.cta_sum[buffer][i];
      all.count += s_.cta_count[buffer][i];
    }
    return all;
  }

  // The smallest key for which reaches(key, buffer), which is monotonic, holds; bit by bit.
  template <typename Reaches>
  __device__ uint64_t bisect(const Reaches& reaches) const {
    uint64_t key = 0;
    const int id_bits = 32 - __clz(row_.vocab());
    int buffer = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 0; --bit) {
      if (bit < 32 && bit >= id_bits) continue;
      if (!reaches(key | ((uint64_t{1} << bit) - 1), buffer)) key |= uint64_t{1} << bit;
      buffer ^= 1;
    }
    return key;
  }

  // Logits above -inf with keys up to `limit`.
  __device__ int count_up_to(uint64_t limit, int buffer) {
    int n = 0;
    for_each_key([&](uint64_t key) { n += key <= limit; });
    return totals(0.0, n, buffer).count;
  }

  // The key of the k-th best logit, of the last one where there are fewer above -inf.
  __device__ uint64_t kth_key(int k) {
    const int wanted = min(k, count_up_to(kNoLogit, 1));
    return bisect([&](uint64_t limit, int buffer) { return count_up_to(limit, buffer) >= wanted; });
  }

 private:
  const cg::cluster_group cluster_;
  RowShared& s_;
  uint64_t* const list_;
  const int list_size_, n_ctas_;
  const int rank_, warp_, lane_;  // of the CTA in the cluster, the warp in that, the lane in it
  const StagedRow<float> row_;
};

}  // namespace kdt::cuda::device
