// Which tokens of a row sampling keeps, as ops/tree_accept.h defines it: all logits up to one last
// key, found among the best few hundred logits. Where those are not the nucleus, histograms of the
// probability over ever narrower ranges of logits find where its mass is reached; what even that
// does not decide is bisected.
#pragma once

#include <cfloat>

#include "cuda/device/cluster_row.cuh"
#include "cuda/device/sort.cuh"
#include "ops/tree_accept.h"

namespace kdt::cuda {

using device::kPiece;
using device::kRowThreads;
using Piece = device::Piece<float>;

constexpr int kDrawList = 2048;  // keys, a power of two
constexpr int kListKeys = kDrawList / kRowThreads;
constexpr int kUsualTopK = 512;                     // of a nucleus
constexpr int kBinBits = 3, kBins = 1 << kBinBits;  // of a histogram: a float per thread and bin
constexpr size_t kListBytes = kDrawList * sizeof(uint64_t);  // the histogram's space too
static_assert(kListBytes >= size_t{kBins} * kRowThreads * sizeof(float));

struct FilterShared {
  uint64_t last;  // in every CTA
  double warp_mass[device::kRowWarps];
  double bin_mass[2][kBins][device::kMaxCluster];  // of the whole cluster, in every CTA
  float least_logit;
};

// All threads of the cluster call find_kept() together.
class KeptTokens {
 public:
  // list[kDrawList]: shared memory, `row`'s too.
  __device__ KeptTokens(device::ClusterRow& row, int vocab, const SamplingParams& sampling,
                        FilterShared& shared, uint64_t* list)
      : sampling_(sampling),
        vocab_(vocab),
        row_(row),
        s_(shared),
        list_(list),
        inverse_t_(fminf(1.0f / sampling.temperature, FLT_MAX)) {}

  // False if a logit is NaN or +inf, or all are -inf.
  __device__ bool find_kept() {
    const bool limited = sampling_.top_k > 0 && sampling_.top_k < vocab_;
    const int k = limited ? min(sampling_.top_k, kUsualTopK) : kUsualTopK;
    const bool filtered = limited || sampling_.top_p < 1.0f;
    const device::Quota quota = device::quota_of(filtered ? k : 1, row_.n_warps());
    const uint32_t max_key = row_.find_maximum(quota.q);
    peak_ = device::value_of_key(max_key);
    if (max_key == device::kBadRow || peak_ == -INFINITY) return false;
    if (filtered) keep_up_to(last_kept(limited, row_.find_threshold(quota.j)));
    if (sampling_.min_p > 0.0f) keep_least_probability();
    return true;
  }

  __device__ bool is_kept(float x, int id) const {
    return x > least_logit_ || (x == least_logit_ && id <= last_id_);
  }
  __device__ float least_logit() const { return least_logit_; }

  // A logit as the logarithm of its probability over the largest.
  __device__ float scaled(float x) const { return (x - peak_) * inverse_t_; }

 protected:
  const SamplingParams sampling_;
  const int vocab_;
  device::ClusterRow& row_;

 private:
  // The probability up to a factor.
  __device__ float weight(float logit) const { return expf(scaled(logit)); }

  __device__ double mass_up_to(uint64_t limit, int buffer) {
    double mass = 0.0;
    row_.for_each_key([&](uint64_t key) {
      if (key <= limit) mass += weight(device::key_logit(key));
    });
    return row_.totals(mass, 0, buffer).sum;
  }

  // The largest key that top-k and top-p keep.
  __device__ uint64_t last_kept(bool limited, float threshold) {
    double mass = 0.0;
    int n_sent = 0;
    const bool sum_all = sampling_.top_p < 1.0f && !limited;
    row_.for_each([&](const Piece& piece, int first) {
      if (sum_all) {
#pragma unroll
        for (int i = 0; i < kPiece; ++i) mass += weight(piece.x[i]);
      }
      if (!(device::largest_or_nan(piece) >= threshold)) return;
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if (!(piece.x[i] >= threshold) || piece.x[i] == -INFINITY) continue;
        row_.send(device::logit_key(piece.x[i], first + i));
        ++n_sent;
      }
    });
    const auto totals = row_.totals(mass, n_sent, 0);
    if (row_.is_first_cta()) {
      if (threadIdx.x == 0) s_.last = device::kNoLogit;
      __syncthreads();
      const bool decides = !limited || sampling_.top_k <= kUsualTopK;
      if (totals.count <= kDrawList && decides) search_list(limited, totals.count, totals.sum);
    }
    share_last();
    uint64_t last = s_.last;
    if (last == device::kNoLogit && !limited) last = nucleus_last(sampling_.top_p * totals.sum);
    return last == device::kNoLogit ? bisected_last(limited) : last;
  }

  // First CTA: sets s_.last if the list, which holds the best n logits, decides it.
  __device__ void search_list(bool limited, int n, double total) {
    device::sort(list_, n);
    const int n_top = limited ? min(n, sampling_.top_k) : n;
    if (sampling_.top_p == 1.0f) {
      if (threadIdx.x == 0) s_.last = list_[n_top - 1];
      return;
    }
    double sums[kListKeys];
    const double all = running_sums(n_top, sums);
    find_crossing(n_top, sums, sampling_.top_p * (limited ? all : total));
  }

  // Running sums of the list's first n weights, kListKeys to a thread; returns that of all.
  __device__ double running_sums(int n, double (&sums)[kListKeys]) {
    const int first = threadIdx.x * kListKeys, warp = threadIdx.x / 32;
    double running = 0.0;
    for (int i = 0; i < kListKeys; ++i) {
      if (first + i < n) running += weight(device::key_logit(list_[first + i]));
      sums[i] = running;
    }
    for (int step = 1; step < 32; step *= 2) {
      const double other = __shfl_up_sync(device::kAllLanes, running, step);
      if (row_.lane() >= step) running += other;
    }
    if (row_.lane() == 31) s_.warp_mass[warp] = running;
    __syncthreads();
    double before = running - sums[kListKeys - 1], all = 0.0;
    for (int i = 0; i < device::kRowWarps; ++i) {
      if (i < warp) before += s_.warp_mass[i];
      all += s_.warp_mass[i];
    }
    for (double& sum : sums) sum += before;
    return all;
  }

  // Sets s_.last to the key at which the running sums reach `wanted`, if they do.
  __device__ void find_crossing(int n, const double (&sums)[kListKeys], double wanted) {
    const int first = threadIdx.x * kListKeys;
    for (int i = 0; i < kListKeys; ++i) {
      const double below =
          sums[i] - (first + i < n ? weight(device::key_logit(list_[first + i])) : 0.0);
      if (first + i < n && below < wanted && sums[i] >= wanted) s_.last = list_[first + i];
    }
  }

  // How far a logit is below the largest, in 2^-25 of the temperature.
  __device__ uint32_t steps_below(float x) const {
    return static_cast<uint32_t>(fminf((peak_ - x) * inverse_t_ * 0x1p25f, 0x1p30f - 64.0f));
  }

  struct Bin {
    int index;      // -1: none
    double before;  // mass of the bins before it
  };
  // Which bin of 2^shift steps from `low` holds the mass `wanted`, counted from `low`.
  __device__ Bin find_bin(uint32_t low, int shift, double wanted, int buffer) {
    float* mine = reinterpret_cast<float*>(list_) + threadIdx.x;
    row_.sync();  // the list and this buffer of the bins are free
    for (int i = 0; i < kBins; ++i) mine[i * kRowThreads] = 0.0f;
    row_.for_each([&](const Piece& piece, int) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        const uint32_t bin = (steps_below(piece.x[i]) - low) >> shift;
        if (bin < kBins) mine[bin * kRowThreads] += weight(piece.x[i]);
      }
    });
    __syncthreads();
    if (const int bin = threadIdx.x / 32; bin < kBins) {
      double sum = 0.0;
      for (int i = row_.lane(); i < kRowThreads; i += 32)
        sum += reinterpret_cast<const float*>(list_)[bin * kRowThreads + i];
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(device::kAllLanes, sum, step);
      row_.store_to_all(&s_.bin_mass[buffer][bin][row_.rank()], sum);
    }
    row_.sync();
    double before = 0.0;
    for (int bin = 0; bin < kBins; ++bin) {
      double mass = 0.0;
      for (int i = 0; i < row_.n_ctas(); ++i) mass += s_.bin_mass[buffer][bin][i];
      if (before + mass >= wanted) return {bin, before};
      before += mass;
    }
    return {-1, 0.0};
  }

  // The last key of a nucleus of the mass `wanted`; kNoLogit where too many logits are too near it.
  __device__ uint64_t nucleus_last(double wanted) {
    uint32_t low = 0;
    for (int shift = 30 - kBinBits, buffer = 0; shift > 0; shift -= kBinBits, buffer ^= 1) {
      const Bin bin = find_bin(low, shift, wanted, buffer);
      if (bin.index < 0) break;
      low += bin.index << shift;
      wanted -= bin.before;
      if (shift > 21) continue;  // half a temperature wide and more: mostly too many
      const int n = list_range(low, 1u << shift, buffer);
      if (n > kDrawList) continue;
      if (row_.is_first_cta()) {
        device::sort(list_, n);
        if (threadIdx.x == 0) s_.last = list_[n - 1];  // unless rounding hides the crossing
        double sums[kListKeys];
        running_sums(n, sums);
        find_crossing(n, sums, wanted);
      }
      share_last();
      return s_.last;
    }
    return device::kNoLogit;
  }

  // Lists the logits of `width` steps from `low` in the first CTA; returns how many there are.
  __device__ int list_range(uint32_t low, uint32_t width, int buffer) {
    row_.clear_list();
    int n = 0;
    row_.for_each([&](const Piece& piece, int first) {
#pragma unroll
      for (int i = 0; i < kPiece; ++i) {
        if (piece.x[i] == -INFINITY || steps_below(piece.x[i]) - low >= width) continue;
        row_.send(device::logit_key(piece.x[i], first + i));
        ++n;
      }
    });
    return row_.totals(0.0, n, buffer).count;
  }

  // Gives s_.last of the first CTA to all.
  __device__ void share_last() {
    if (row_.is_first_cta()) {
      __syncthreads();
      const uint64_t last = s_.last;
      if (threadIdx.x > 0 && threadIdx.x < 32) row_.store_to_all(&s_.last, last);  // but to this
    }
    row_.sync();
  }

  __device__ uint64_t bisected_last(bool limited) {
    const uint64_t limit = limited ? row_.kth_key(sampling_.top_k) : device::kNoLogit;
    if (sampling_.top_p == 1.0f) return limit;
    row_.sync();  // the buffers of the last total are free
    const double wanted = sampling_.top_p * mass_up_to(limit, 1);
    return row_.bisect([&](uint64_t key, int buffer) { return mass_up_to(key, buffer) >= wanted; });
  }

  __device__ void keep_up_to(uint64_t last) {
    least_logit_ = device::key_logit(last);
    last_id_ = device::key_id(last);
  }

  // The smallest logit with exp(logit / T - peak / T) >= min_p in float64.
  __device__ void keep_least_probability() {
    if (threadIdx.x == 0) {
      const double t = sampling_.temperature, peak = peak_ / t;
      const auto kept = [&](float x) { return exp(x / t - peak) >= sampling_.min_p; };
      float x = fminf(static_cast<float>((log(double{sampling_.min_p}) + peak) * t), peak_);
      while (!kept(x)) x = nextafterf(x, INFINITY);
      while (kept(nextafterf(x, -INFINITY))) x = nextafterf(x, -INFINITY);
      s_.least_logit = x;
    }
    __syncthreads();
    if (s_.least_logit <= least_logit_) return;
    least_logit_ = s_.least_logit;
    last_id_ = vocab_;
  }

  FilterShared& s_;
  uint64_t* const list_;
  const float inverse_t_;
  float peak_ = 0.0f;
  float least_logit_ = -INFINITY;  // kept: logits above it, and those equal to it up to last_id_
  int last_id_ = INT32_MAX;
};

}  // namespace kdt::cuda
