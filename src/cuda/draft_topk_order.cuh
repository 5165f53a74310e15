// The best k of a row from its parts' lists, in order.
#pragma once

#include "cuda/device/sort.cuh"
#include "cuda/draft_topk_part.cuh"

namespace kdt::cuda {

constexpr int kListWarps = 8, kManyListWarps = 31;  // one more works on log_z
constexpr int kSliceKeys = kFirstKeys / 32;         // of a lane
constexpr int kCounted = 128;                       // keys ordered by counting; more are sorted

struct OrderShared {
  uint64_t kth;       // the k-th best key, kNoLogit where there are fewer
  uint64_t complete;  // all keys up to it are in the lists
  float log_z;
  int n_keys, n_below;
};

// One CTA; all threads call the members together.
template <typename T>
class RowOrder {
 public:
  // Shared memory: keys[capacity], a power of two; parts[n_parts]; kth[n_parts, kPartWarps].
  // list_warps: that share a part's list.
  __device__ RowOrder(const TopkTask& task, OrderShared& shared, char* bytes, int capacity,
                      int list_warps)
      : task_(task),
        p_(task.p),
        s_(shared),
        keys_(reinterpret_cast<uint64_t*>(bytes)),
        parts_(reinterpret_cast<Part*>(keys_ + capacity)),
        kth_(reinterpret_cast<uint32_t*>(parts_ + task.n_parts)),
        capacity_(capacity),
        n_kth_(task.n_parts * kPartWarps),
        n_threads_(static_cast<int>(blockDim.x)),
        n_list_warps_(n_threads_ / 32 - 1),
        list_warps_(list_warps),
        thread_(static_cast<int>(threadIdx.x)),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {}

  __host__ __device__ static size_t shared_bytes(int n_parts, int capacity) {
    return capacity * sizeof(uint64_t) + n_parts * (sizeof(Part) + kPartWarps * sizeof(uint32_t));
  }

  __device__ void run() {
    // All that is usually wanted, in one trip to memory; most lists are no longer.
    uint64_t early[kSliceKeys];
    const bool bad = load(early);
    if (p_.depth == 0) return;
    if (warp_ == n_list_warps_)
      find_totals();
    else
      collect(find_threshold(), early);
    __syncthreads();
    bool done = bad;
#pragma unroll 1
    while (!done) {
      done = s_.n_keys <= capacity_;
      if (done) write_best(s_.n_keys);
      done = done && s_.complete >= s_.kth;
      if (!done) read_again(s_.n_keys <= capacity_ ? s_.kth : device::kNoLogit);
    }
    for (int i = (bad ? 0 : s_.n_keys) + thread_; i < p_.k; i += n_threads_) {
      p_.logp[row_ * p_.k + i] = -INFINITY;
      p_.ids[row_ * p_.k + i] = -1;
    }
    if (thread_ == 0 && p_.log_z) p_.log_z[row_] = bad ? -INFINITY : s_.log_z;
  }

 private:
  // Sets the status; whether the request has a bad row. A barrier.
  __device__ bool load(uint64_t (&early)[kSliceKeys]) {
    const int depth = max(p_.depth, 1), n_parts = p_.depth * task_.n_parts;
    const int64_t request = row_ / depth, first_part = row_ * task_.n_parts;
    int bad = 0;
#pragma unroll 1
    for (int i = thread_; i < n_parts; i += n_threads_)
      bad |= task_.parts[request * n_parts + i].count == kBad;
    if (p_.depth > 0) {
#pragma unroll 1
      for (int i = thread_; i < task_.n_parts; i += n_threads_)
        parts_[i] = task_.parts[first_part + i];
#pragma unroll 1
      for (int i = thread_; i < n_kth_; i += n_threads_)
        kth_[i] = task_.kth[first_part * kPartWarps + i];
#pragma unroll
      for (int i = 0; i < kSliceKeys; ++i)
        early[i] = warp_ < min(n_list_warps_, task_.n_parts)
                       ? task_.lists[(first_part + warp_) * task_.list_size + i * 32 + lane_]
                       : device::kNoLogit;
    }
    if (thread_ == 0) s_.kth = device::kNoLogit;
    if (thread_ == 0) s_.n_keys = 0;
    bad = __syncthreads_or(bad);
    if (row_ % depth == 0 && thread_ == 0) p_.status[request] = bad;
    return bad;
  }

  // log_z and which keys are in the lists, by a full warp.
  __device__ void find_totals() {
    float peak = -INFINITY;
    uint64_t complete = device::kNoLogit;
#pragma unroll 1
    for (int i = lane_; i < task_.n_parts; i += 32) {
      peak = fmaxf(peak, parts_[i].peak);
      complete = min(complete, parts_[i].last);
    }
    for (int step = 16; step > 0; step /= 2) {
      peak = fmaxf(peak, __shfl_xor_sync(kAllLanes, peak, step));
      complete = min(complete, __shfl_xor_sync(kAllLanes, complete, step));
    }
    double sum = 0.0;
#pragma unroll 1
    for (int i = lane_; i < task_.n_parts && peak > -INFINITY; i += 32)
      sum += parts_[i].sum * exp(double{parts_[i].peak} - peak);
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAllLanes, sum, step);
    if (lane_ != 0) return;
    s_.complete = complete;
    s_.log_z = peak > -INFINITY ? static_cast<float>(peak + log(sum)) : -INFINITY;
  }

  // The key of a logit that k logits reach, the j-th largest of kth_, by a full warp; 0 if equal
  // values hide it.
  __device__ uint32_t find_threshold() const {
    uint32_t found = 0;
    for (int index = lane_; index - lane_ < n_kth_; index += 32) {
      const uint32_t mine = index < n_kth_ ? kth_[index] : 0;
      int4 above = {};  // four sums: each is a chain
#pragma unroll 4
      for (int i = 0; i < n_kth_; i += 4) {
        const uint4 others = *reinterpret_cast<const uint4*>(&kth_[i]);
        above.x += others.x > mine;
        above.y += others.y > mine;
        above.z += others.z > mine;
        above.w += others.w > mine;
      }
      if (above.x + above.y + above.z + above.w == task_.row_quota.j - 1) found = mine;
    }
    return __reduce_max_sync(kAllLanes, found) & ~(kKthTags - 1u);
  }

  // Whole warps.
  __device__ void keep(uint64_t key, bool wanted) {
    const unsigned lanes = __ballot_sync(kAllLanes, wanted);
    if (lanes == 0) return;
    int at = lane_ == 0 ? atomicAdd(&s_.n_keys, __popc(lanes)) : 0;
    at = __shfl_sync(kAllLanes, at, 0) + __popc(lanes & ((1u << lane_) - 1));
    if (wanted && at < capacity_) keys_[at] = key;
  }

  // By the warps that deal with lists.
  __device__ void collect(uint32_t threshold, const uint64_t (&early)[kSliceKeys]) {
    const auto wanted = [&](uint64_t key) {
      return key != device::kNoLogit && ~static_cast<uint32_t>(key >> 32) >= threshold;
    };
    int part = warp_, member = 0;
#pragma unroll 1
    for (; part >= task_.n_parts; part -= task_.n_parts) ++member;
    if (member >= list_warps_) return;
#pragma unroll 1
    for (; part < task_.n_parts; part += n_list_warps_) {
      const uint64_t* list = task_.lists + (row_ * task_.n_parts + part) * task_.list_size;
      const int count = parts_[part].count;
#pragma unroll 1
      for (int first = member * kFirstKeys; first < count; first += list_warps_ * kFirstKeys) {
        const bool is_early = part == warp_ && first == 0;
        uint64_t keys[kSliceKeys];
#pragma unroll
        for (int j = 0; j < kSliceKeys; ++j) {
          const int i = first + 32 * j + lane_;
          keys[j] = is_early ? early[j] : i < count ? list[i] : device::kNoLogit;
        }
#pragma unroll
        for (const uint64_t key : keys) keep(key, wanted(key));
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
    if (n <= kCounted) {  // two lanes count for one key
      for (int first = 0; first < n; first += n_threads_ / 2) {
        const int own = first + thread_ / 2;
        const uint64_t key = own < n ? keys_[own] : device::kNoLogit;
        int place = 0, more = 0;
#pragma unroll 4
        for (int i = thread_ % 2; i < n; i += 4) {
          place += keys_[i] < key;
          more += i + 2 < n && keys_[i + 2] < key;
        }
        place += more;
        place += __shfl_xor_sync(kAllLanes, place, 1);
        if (own < n && thread_ % 2 == 0 && place < p_.k) write(place, key);
      }
    } else {
      device::sort(keys_, n);
      for (int i = thread_; i < min(n, p_.k); i += n_threads_) write(i, keys_[i]);
    }
    __syncthreads();
  }

  // fn(key, whether there is one) for the row's logits above -inf, by whole warps.
  template <typename Fn>
  __device__ void for_each_key(const Fn& fn) const {
    const T* row = static_cast<const T*>(p_.logits) + row_ * p_.row_stride;
    const bool aligned = reinterpret_cast<uintptr_t>(row) % 16 == 0;
#pragma unroll 1
    for (int first = warp_ * 32 * kPiece; first < p_.vocab; first += n_threads_ * kPiece) {
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
    if (thread_ == 0) s_.complete = device::kNoLogit;
    __syncthreads();
    for_each_key([&](uint64_t key, bool there) { keep(key, there && key <= last); });
    __syncthreads();
  }

  const TopkTask& task_;
  const DraftTopkParams& p_;
  OrderShared& s_;
  uint64_t* const keys_;
  Part* const parts_;
  uint32_t* const kth_;
  const int capacity_, n_kth_, n_threads_, n_list_warps_, list_warps_, thread_, warp_, lane_;
  const int64_t row_ = blockIdx.x;
};

// The rows of one request lie together; blockIdx.x is the row, or the request without depths. A
// NaN in one row clears all rows of its request.
template <typename T>
__global__ void __launch_bounds__(32 * (kManyListWarps + 1))
    order_kernel(const __grid_constant__ TopkTask task, int capacity, int list_warps) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) char bytes[];
  __shared__ OrderShared shared;
  RowOrder<T>(task, shared, bytes, capacity, list_warps).run();
}

}  // namespace kdt::cuda
