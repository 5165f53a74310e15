// A part of a row of logits, by one CTA that keeps it in registers: the sum of its exponentials and
// a list of its best logits.
//
// A row is dealt to its parts in lines of 64 logits, and a part's lines to its warps: token ids are
// ordered by frequency, and a range would have all large logits or none. So the best k of a row are
// spread over its parts, and a part lists but as many as chance will hardly exceed; the kernel that
// orders the lists sees whether it did.
#pragma once

#include "cuda/device/dependency.cuh"
#include "cuda/device/exp2.cuh"
#include "cuda/device/threshold.cuh"
#include "ops/draft_topk.h"

namespace kdt::cuda {

using device::kAllLanes;
using device::kBadRow;
using device::kPiece;
using device::Piece;

constexpr int kPartThreads = 256, kPartWarps = kPartThreads / 32;
constexpr int kPartPieces = 10;  // of a lane
constexpr int kPartLogits = kPartThreads * kPartPieces * kPiece;
constexpr int kKthTags = 512;   // in the lowest bits: equal maxima of a row's warps differ
constexpr int kFirstKeys = 64;  // of a list, always written
constexpr int32_t kBad = -1;    // a part's count: there is NaN or +inf

// What a CTA found in its part of a row.
struct alignas(16) Part {
  double sum;     // of exp(logit - peak)
  float peak;     // the largest logit
  int32_t count;  // of the list
  uint64_t last;  // the list holds all keys up to it; kNoLogit: all that can be among the best k
};

struct TopkTask {
  DraftTopkParams p;
  Part* parts;      // [B, L, n_parts]
  uint32_t* kth;    // [B, L, n_parts, kPartWarps] q-th largest maxima of row_quota, as keys,
                    // tagged
  uint64_t* lists;  // [B, L, n_parts, list_size] keys, in no order
  device::Quota row_quota, part_quota;
  int n_parts, list_size;
};

struct PartShared {
  alignas(16) uint32_t kth[kPartWarps];  // the warp's number in the lowest bits
  uint32_t max[kPartWarps];
  double sum[kPartWarps];
  int n_hits, n_listed;
};

// All threads call the members together.
template <typename T>
class PartOfRow {
 public:
  // hits[task.list_size], and as many indices after them: shared memory.
  __device__ PartOfRow(const TopkTask& task, PartShared& shared, Piece<T>* hits)
      : task_(task),
        s_(shared),
        hits_(hits),
        hit_ids_(reinterpret_cast<int*>(hits + task.list_size)),
        row_(static_cast<const T*>(task.p.logits) + blockIdx.y * task.p.row_stride),
        part_(int64_t{blockIdx.y} * task.n_parts + blockIdx.x),
        list_(task.lists + part_ * task.list_size),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_(((lane_ / 8 * kPartWarps + warp_) * task.n_parts + blockIdx.x) * device::kLine +
               lane_ % 8 * kPiece),
        stride_(4 * kPartWarps * task.n_parts * device::kLine) {}

  __device__ void run() {
    device::load_pieces(row_, task_.p.vocab, first_, stride_, pieces_);
    if (threadIdx.x == 0) s_.n_hits = s_.n_listed = 0;
    find_maxima();
    __syncthreads();
    const uint32_t max_key = __reduce_max_sync(kAllLanes, s_.max[lane_ % kPartWarps]);
    const uint32_t threshold_key = find_threshold();
    const float threshold = threshold_key ? device::value_of_key(threshold_key) : -INFINITY;
    const bool bad = max_key == kBadRow;
    Part part = {.peak = bad ? -INFINITY : device::value_of_key(max_key)};
    if (!bad) find_hits(threshold);
    part.sum = sum_relative_to(part.peak);
    if (s_.n_hits <= task_.list_size) list_hits(threshold);
    if (max(s_.n_hits, s_.n_listed) > task_.list_size) list_best(task_.p.k);
    const int count = s_.n_listed;
    part.count = bad ? kBad : count;
    part.last = threshold_key == 0 || count >= task_.p.k
                    ? device::kNoLogit
                    : uint64_t{~threshold_key} << 32 | 0xffffffffu;
    if (threadIdx.x == 0) task_.parts[part_] = part;
    if (const int i = count + threadIdx.x; i < kFirstKeys) list_[i] = device::kNoLogit;
  }

 private:
  // The token of the first logit of piece j.
  __device__ int first(int j) const { return first_ + j * stride_; }

  // Every warp's maximum, and the q-th largest maxima of its lanes' halves for both quotas.
  __device__ void find_maxima() {
    float best[2] = {-INFINITY, -INFINITY};
    bool bad = false;
#pragma unroll
    for (int j = 0; j < kPartPieces; ++j) {
      const float most = device::largest_or_nan(pieces_[j].piece());
      bad |= !(most < INFINITY);
      best[j % 2] = fmaxf(best[j % 2], most);
    }
    best_ = fmaxf(best[0], best[1]);
    uint32_t high = device::ascending_key(best_), of_row = 0, of_part = 0;
    uint32_t low = device::ascending_key(fminf(best[0], best[1]));
    const uint32_t max_key =
        __any_sync(kAllLanes, bad) ? kBadRow : __reduce_max_sync(kAllLanes, high);
    const int q = min(max(task_.row_quota.q, task_.part_quota.q), 64);
    for (int i = 1; i <= q; ++i) {
      const uint32_t most = __reduce_max_sync(kAllLanes, high);
      if (i == task_.row_quota.q) of_row = most;
      if (i == task_.part_quota.q) of_part = most;
      const unsigned holders = __ballot_sync(kAllLanes, high == most);
      if (lane_ != __ffs(holders) - 1) continue;
      high = low;
      low = 0;
    }
    if (lane_ != 0) return;
    s_.max[warp_] = max_key;
    s_.kth[warp_] = (of_part & ~(kPartWarps - 1u)) | warp_;
    const unsigned tag = (blockIdx.x * kPartWarps + warp_) % kKthTags;
    task_.kth[part_ * kPartWarps + warp_] = (of_row & ~(kKthTags - 1u)) | tag;
  }

  // The j-th largest of s_.kth, at most seven units in the last place lower; 0 where that is -inf
  // or a warp has too few lanes in use. The warps' numbers in the lowest bits tell equal values
  // apart.
  __device__ uint32_t find_threshold() const {
    const uint32_t mine = s_.kth[lane_ % kPartWarps];
    int above = 0;
#pragma unroll
    for (int i = 0; i < kPartWarps; i += 4) {
      const uint4 others = *reinterpret_cast<const uint4*>(&s_.kth[i]);
      above += others.x > mine;
      above += others.y > mine;
      above += others.z > mine;
      above += others.w > mine;
    }
    const unsigned lanes = __ballot_sync(kAllLanes, above == task_.part_quota.j - 1);
    const uint32_t key = __shfl_sync(kAllLanes, mine, __ffs(lanes) - 1) & ~(kPartWarps - 1u);
    return key > device::ascending_key(-INFINITY) ? key : 0;
  }

  // Keeps the pieces that hold logits to list, for all threads to look into.
  __device__ void find_hits(float threshold) {
    if (!(best_ >= threshold)) return;
#pragma unroll
    for (int j = 0; j < kPartPieces; ++j) {
      if (!(device::largest_or_nan(pieces_[j].piece()) >= threshold)) continue;
      const int at = atomicAdd(&s_.n_hits, 1);
      if (at >= task_.list_size) continue;
      hits_[at] = pieces_[j].piece();
      hit_ids_[at] = first(j);
    }
  }

  // What does not fit is counted only.
  __device__ __forceinline__ void list(uint64_t key) {
    const int at = atomicAdd(&s_.n_listed, 1);
    if (at < task_.list_size) list_[at] = key;
  }

  __device__ void list_hits(float threshold) {
    for (int i = threadIdx.x; i < s_.n_hits * kPiece; i += kPartThreads) {
      const float x = device::to_float(hits_[i / kPiece].x[i % kPiece]);
      if (x >= threshold && x > -INFINITY)
        list(device::logit_key(x, hit_ids_[i / kPiece] + i % kPiece));
    }
    __syncthreads();
  }

  // In thread 0; fp32 within a piece, float64 across pieces and lanes, in an order that depends on
  // nothing else. A barrier.
  __device__ double sum_relative_to(float peak) {
    double sum = 0.0;
    if (peak > -INFINITY) {
#pragma unroll
      for (int j = 0; j < kPartPieces; ++j) {
        const Piece<T> piece = pieces_[j].piece();
        float e[kPiece];
#pragma unroll
        for (int i = 0; i < kPiece; ++i)
          e[i] = device::exp2_estimate((device::to_float(piece.x[i]) - peak) * device::kLog2E);
        sum += ((e[0] + e[1]) + (e[2] + e[3])) + ((e[4] + e[5]) + (e[6] + e[7]));
      }
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane_ == 0) s_.sum[warp_] = sum;
    __syncthreads();
    if (warp_ > 0) return 0.0;
    sum = s_.sum[lane_ % kPartWarps];
    for (int step = kPartWarps / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(kAllLanes, sum, step);
    return sum;
  }

  // fn(key) for this lane's logits above -inf, from memory.
  template <typename Fn>
  __device__ void for_each_key(const Fn& fn) const {
#pragma unroll 1
    for (int i = 0; i < kPartPieces * kPiece; ++i) {
      const int id = first(i / kPiece) + i % kPiece;
      if (id >= task_.p.vocab) break;
      const float x = device::to_float(row_[id]);
      if (x > -INFINITY) fn(device::logit_key(x, id));
    }
  }

  // Lists the best k instead, of which there are as many: those up to the smallest key that k
  // reach, found bit by bit.
  __device__ void list_best(int k) {
    uint64_t last = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 0; --bit) {
      if (bit < 32 && bit >= 32 - __clz(task_.p.vocab)) continue;
      const uint64_t limit = last | ((uint64_t{1} << bit) - 1);
      int n = 0;
      for_each_key([&](uint64_t key) { n += key <= limit; });
      n = __reduce_add_sync(kAllLanes, n);
      __syncthreads();
      if (threadIdx.x == 0) s_.n_listed = 0;
      __syncthreads();
      if (lane_ == 0) atomicAdd(&s_.n_listed, n);
      __syncthreads();
      if (s_.n_listed < k) last |= uint64_t{1} << bit;
    }
    __syncthreads();
    if (threadIdx.x == 0) s_.n_listed = 0;
    __syncthreads();
    for_each_key([&](uint64_t key) {
      if (key <= last) list(key);
    });
    __syncthreads();
  }

  const TopkTask& task_;
  PartShared& s_;
  Piece<T>* const hits_;
  int* const hit_ids_;
  const T* const row_;
  const int64_t part_;
  uint64_t* const list_;
  const int warp_, lane_;
  const int first_, stride_;
  device::PieceWords<T> pieces_[kPartPieces];
  float best_ = -INFINITY;  // of this lane
};

// Grid: (the parts of a row, rows).
template <typename T>
__global__ void __launch_bounds__(kPartThreads, sizeof(T) == 2 ? 4 : 2)
    part_kernel(const __grid_constant__ TopkTask task) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) char hits[];
  __shared__ PartShared shared;
  PartOfRow<T>(task, shared, reinterpret_cast<Piece<T>*>(hits)).run();
}

}  // namespace kdt::cuda
