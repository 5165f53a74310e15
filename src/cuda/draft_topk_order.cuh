// The best k of a row from its parts' lists, in order.
#pragma once

#include "cuda/device/sort.cuh"
#include "cuda/draft_topk_part.cuh"

namespace kdt::cuda {

constexpr int kOrderThreads = 256, kOrderWarps = kOrderThreads / 32;
constexpr int kCounted = 2 * kOrderThreads;  // keys ordered by counting; more are sorted

struct OrderShared {
  uint64_t kth;  // the k-th best key, kNoLogit where there are fewer
  float log_z;
  uint32_t threshold;
  int n_keys, n_below;
};

// One CTA; all threads call the members together.
template <typename T>
class RowOrder {
 public:
  // keys[capacity], a power of two, and kth[n_parts, kPartWarps]: shared memory.
  __device__ RowOrder(const TopkTask& task, OrderShared& shared, uint64_t* keys, int capacity,
                      uint32_t* kth, bool bad)
      : task_(task),
        p_(task.p),
        s_(shared),
        keys_(keys),
        kth_(kth),
        capacity_(capacity),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32),
        bad_(bad) {}

  __device__ void run() {
    const int64_t first_part = row_ * task_.n_parts;
    const int n_warps = task_.n_parts * kPartWarps;
    if (thread_ == 0) s_ = {.kth = device::kNoLogit, .log_z = -INFINITY};
    for (int i = thread_; i < n_warps; i += kOrderThreads)
      kth_[i] = task_.kth[first_part * kPartWarps + i];
    // Most lists are no longer: they are on their way before their lengths are known.
    uint64_t early[2] = {device::kNoLogit, device::kNoLogit};
    if (warp_ < task_.n_parts)
      for (int i = 0; i < 2; ++i)
        early[i] = task_.lists[(first_part + warp_) * task_.list_size + i * 32 + lane_];
    uint64_t complete = device::kNoLogit;  // all keys up to it are in the lists
    for (int part = 0; part < task_.n_parts; ++part)
      complete = min(complete, task_.parts[first_part + part].last);
    __syncthreads();
    if (!bad_ && warp_ == kOrderWarps - 1) find_log_z();
    find_threshold(n_warps);
    __syncthreads();
    collect(early);
    __syncthreads();
    if (!bad_ && s_.n_keys <= capacity_) write_best(s_.n_keys);
    if (!bad_ && (s_.n_keys > capacity_ || complete < s_.kth)) {
      read_again(s_.n_keys <= capacity_ ? s_.kth : device::kNoLogit);
      write_best(s_.n_keys);
    }
    for (int i = (bad_ ? 0 : s_.n_keys) + thread_; i < p_.k; i += kOrderThreads) {
      p_.logp[row_ * p_.k + i] = -INFINITY;
      p_.ids[row_ * p_.k + i] = -1;
    }
    if (thread_ == 0 && p_.log_z) p_.log_z[row_] = s_.log_z;
  }

 private:
  // By a full warp.
  __device__ void find_log_z() {
    const Part* parts = task_.parts + row_ * task_.n_parts;
    float peak = -INFINITY;
    for (int i = lane_; i < task_.n_parts; i += 32) peak = fmaxf(peak, parts[i].peak);
    for (int step = 16; step > 0; step /= 2)
      peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, step));
    if (peak == -INFINITY) return;
    double sum = 0.0;
    for (int i = lane_; i < task_.n_parts; i += 32)
      sum += parts[i].sum * exp(double{parts[i].peak} - peak);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane_ == 0) s_.log_z = static_cast<float>(peak + log(sum));
  }

  // Sets s_.threshold to the j-th largest of kth_, which k logits reach; four lanes rank one.
  __device__ void find_threshold(int n_warps) {
    for (int index = thread_ / 4; index < n_warps; index += kOrderThreads / 4) {  // whole warps
      const uint32_t mine = kth_[index];
      int above = 0;
      for (int i = thread_ % 4 * 4; i < n_warps; i += 16) {
        const uint4 others = *reinterpret_cast<const uint4*>(&kth_[i]);
        above += others.x > mine || (others.x == mine && i < index);
        above += others.y > mine || (others.y == mine && i + 1 < index);
        above += others.z > mine || (others.z == mine && i + 2 < index);
        above += others.w > mine || (others.w == mine && i + 3 < index);
      }
      above += __shfl_xor_sync(kAllLanes, above, 1);
      above += __shfl_xor_sync(kAllLanes, above, 2);
      if (above == task_.row_quota.j - 1) s_.threshold = mine;
    }
  }

  // Whole warps.
  __device__ void keep(uint64_t key, bool wanted) {
    const unsigned lanes = __ballot_sync(kAllLanes, wanted);
    if (lanes == 0) return;
    int at = lane_ == 0 ? atomicAdd(&s_.n_keys, __popc(lanes)) : 0;
    at = __shfl_sync(kAllLanes, at, 0) + __popc(lanes & ((1u << lane_) - 1));
    if (wanted && at < capacity_) keys_[at] = key;
  }

  __device__ void collect(const uint64_t (&early)[2]) {
    const auto wanted = [&](uint64_t key) {
      return key != device::kNoLogit && ~static_cast<uint32_t>(key >> 32) >= s_.threshold;
    };
    for (int part = warp_; part < task_.n_parts; part += kOrderWarps) {
      const int64_t index = row_ * task_.n_parts + part;
      const uint64_t* list = task_.lists + index * task_.list_size;
      const int count = task_.parts[index].count;
      for (int first = 0; first < count; first += 32) {
        const int i = first + lane_;
        uint64_t key = device::kNoLogit;
        if (part == warp_ && first < 64)
          key = first == 0 ? early[0] : early[1];
        else if (i < count)
          key = list[i];
        keep(key, wanted(key));
      }
    }
  }

  __device__ void write(int place, uint64_t key) {
    const float logit = device::key_logit(key);
    p_.logp[row_ * p_.k + place] = p_.shard ? logit : logit - s_.log_z;
    p_.ids[row_ * p_.k + place] = p_.first_id + device::key_id(key);
    if (place == p_.k - 1) s_.kth = key;
  }

  // Writes the best k of keys_[0 .. n). Ends with a barrier.
  __device__ void write_best(int n) {
    if (n <= kCounted) {
      for (int i = thread_; i < n; i += kOrderThreads) {
        const int place = device::count_below(keys_, n, keys_[i]);
        if (place < p_.k) write(place, keys_[i]);
      }
    } else {
      int size = kCounted;
      while (size < n) size *= 2;
      for (int i = n + thread_; i < size; i += kOrderThreads) keys_[i] = device::kNoLogit;
      device::bitonic_sort(keys_, size);
      for (int i = thread_; i < min(n, p_.k); i += kOrderThreads) write(i, keys_[i]);
    }
    __syncthreads();
  }

  // fn(key, whether there is one) for the row's logits above -inf, by whole warps.
  template <typename Fn>
  __device__ void for_each_key(const Fn& fn) const {
    const T* row = static_cast<const T*>(p_.logits) + row_ * p_.row_stride;
    const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
#pragma unroll 1
    for (int first = warp_ * 32 * kPiece; first < p_.vocab; first += kOrderThreads * kPiece) {
      const int own = first + lane_ * kPiece;
      const Piece<T> piece = device::load_piece(row, p_.vocab, own, aligned);
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const float x = device::to_float(piece.x[i]);
        fn(device::logit_key(x, own + i), x > -INFINITY);
      }
    }
  }

  // Fills keys_ from the row with its keys up to `last`, or, if they are too many, the best k.
  // Chance makes that necessary once in many thousand rows.
  __device__ void read_again(uint64_t last) {
    gather(last);
    if (s_.n_keys <= capacity_) return;
    last = 0;
#pragma unroll 1
    for (int bit = 63; bit >= 0; --bit) {
      if (bit < 32 && bit >= 32 - __clz(p_.vocab)) continue;
      const uint64_t limit = last | ((uint64_t{1} << bit) - 1);
      int n = 0;
      for_each_key([&](uint64_t key, bool there) { n += there && key <= limit; });
      n = __reduce_add_sync(kAllLanes, n);
      if (thread_ == 0) s_.n_below = 0;
      __syncthreads();
      if (lane_ == 0) atomicAdd(&s_.n_below, n);
      __syncthreads();
      if (s_.n_below < p_.k) last |= uint64_t{1} << bit;
      __syncthreads();
    }
    gather(last);
  }

  __device__ void gather(uint64_t last) {
    __syncthreads();
    if (thread_ == 0) s_.n_keys = 0;
    __syncthreads();
    for_each_key([&](uint64_t key, bool there) { keep(key, there && key <= last); });
    __syncthreads();
  }

  const TopkTask& task_;
  const DraftTopkParams& p_;
  OrderShared& s_;
  uint64_t* const keys_;
  uint32_t* const kth_;
  const int capacity_, thread_, warp_, lane_;
  const bool bad_;
  const int64_t row_ = blockIdx.x;
};

// The rows of one request lie together; blockIdx.x is the row, or the request without depths. A
// NaN in one row clears all rows of its request.
template <typename T>
__global__ void __launch_bounds__(kOrderThreads)
    order_kernel(const __grid_constant__ TopkTask task, int capacity) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) uint64_t keys[];
  __shared__ OrderShared shared;
  const DraftTopkParams& p = task.p;
  const int thread = threadIdx.x, depth = max(p.depth, 1), n_parts = p.depth * task.n_parts;
  const int64_t request = blockIdx.x / depth;
  int bad = 0;
  for (int i = thread; i < n_parts; i += kOrderThreads)
    bad |= task.parts[request * n_parts + i].count == kBad;
  bad = __syncthreads_or(bad);
  if (blockIdx.x % depth == 0 && thread == 0) p.status[request] = bad;
  if (p.depth == 0) return;
  RowOrder<T>(task, shared, keys, capacity, reinterpret_cast<uint32_t*>(keys + capacity), bad)
      .run();
}

}  // namespace kdt::cuda
