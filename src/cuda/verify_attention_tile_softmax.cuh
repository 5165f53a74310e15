// Online softmax (Milakov and Gimelshein, arXiv 1805.02867) over blocks of 32 keys in shared
// memory: 4 or 8 threads a row, 8 or 4 keys a thread.
#pragma once

#include "cuda/device/exp2.cuh"
#include "cuda/device/online_softmax.cuh"
#include "cuda/device/store.cuh"
#include "cuda/device/tree_mask.cuh"
#include "cuda/verify_attention_tile_memory.cuh"

namespace kdt::cuda {

template <typename T, int kRows, int kStages, bool kF8>
class TileSoftmax {
  using Tile = TileShape<T, kRows, kStages, kF8>;
  using Memory = typename Tile::Memory;
  static constexpr int kRun = Tile::kRun, kRuns = Tile::kRuns;
  static constexpr int kStride = kRun * Tile::kRowThreads;  // from a thread's run to its next

 public:
  struct alignas(kRun * 4) Run {
    float x[kRun];
  };

  // Behind FP8 queries' units.
  __device__ TileSoftmax(const Tile& tile, const VerifyAttentionParams& p, int prefix)
      : tile_(tile),
        p_(p),
        prefix_(prefix),
        gather_at_(Tile::kept(tile.scores(0, Tile::softmax_row(), Tile::softmax_key()))),
        weigh_at_(Tile::kept_if_room(tile.weights(Tile::softmax_row(), Tile::softmax_key()))) {
    unit_ = p.scale * device::kLog2E;
    if constexpr (kF8) unit_ *= tile.query_units()[Tile::softmax_row()];
#pragma unroll
    for (int i = 0; i < kRuns; ++i) sum_[i] = 0.0f;
  }

  // The keys of a block that this thread's row sees.
  __device__ uint32_t visible_keys(int block) const {
    const TileState& t = tile_.state();
    const int node = (t.segment.tile * kRows + Tile::softmax_row()) / p_.n_heads;
    if (node >= t.n_nodes) return 0xffffffffu;
    const uint64_t* words =
        p_.ancestors ? p_.ancestors + (static_cast<int64_t>(t.first_row) + node) * p_.n_words
                     : nullptr;
    return device::visible_keys(words, node, t.n_nodes, prefix_, block * kBlockKeys);
  }

  // Softmax of this thread's keys of a block, in three parts: scores, in units of log2; the row's
  // largest one so far; weights and the row's sum. `turn`: of the key factors.
  __device__ void gather(int turn, uint32_t visible, Run (&s)[kRuns]) const {
    const float* factors = tile_.key_factors(turn) + Tile::softmax_key();
    const uint32_t seen = visible >> Tile::softmax_key();
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const uint32_t at = gather_at_ ^ i * kStride * 4;
      device::load_shared(at, s[i].x);
#pragma unroll
      for (int part = 1; part < 4; ++part) {
        Run more;
        device::load_shared(at + part * kRows * kBlockKeys * 4, more.x);
#pragma unroll
        for (int k = 0; k < kRun; ++k) s[i].x[k] += more.x[k];
      }
      Run scale, exponent;
      if constexpr (kF8) {
        scale = run_at(factors + i * kStride);
        exponent = run_at(factors + i * kStride + kBlockKeys);
      }
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        s[i].x[k] = kF8 ? s[i].x[k] * (unit_ * scale.x[k]) + exponent.x[k] : s[i].x[k] * unit_;
        if (!(seen & 1u << (i * kStride + k))) s[i].x[k] = -INFINITY;
      }
    }
  }

  // Returns by what the row's sum and values shrink, which is seldom not 1.
  __device__ float raise(const Run (&s)[kRuns]) {
    float largest = max_;
#pragma unroll
    for (int i = 0; i < kRuns; ++i)
#pragma unroll
      for (int k = 0; k < kRun; ++k) largest = fmaxf(largest, s[i].x[k]);
#pragma unroll
    for (int step = Tile::kRowThreads / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(device::kAllLanes, largest, step));
    const bool rises = largest > max_ + device::kReferenceSlack;
    const float shrink = rises ? device::exp2_estimate(max_ - largest) : 1.0f;
    if (rises) max_ = largest;
    return shrink;
  }

  __device__ void weigh(int turn, float shrink, const Run (&s)[kRuns]) {
    const float* factors = tile_.key_factors(turn) + Tile::softmax_key();
    const float shift = device::shift(max_);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      Run weights;
#pragma unroll
      for (int k = 0; k < kRun; ++k) weights.x[k] = device::exp2_estimate(s[i].x[k] - shift);
      Run addends = weights;
      if constexpr (kF8) {
        const Run fraction = run_at(factors + i * kStride + 2 * kBlockKeys);
        const Run inverse = run_at(factors + i * kStride + 3 * kBlockKeys);
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          addends.x[k] *= inverse.x[k];
          // A key that is not seen stays out even with a scale of NaN.
          if (weights.x[k] != 0.0f) weights.x[k] *= fraction.x[k];
        }
      }
      sum_[i] = sum_[i] * shrink + ((addends.x[0] + addends.x[1]) + (addends.x[2] + addends.x[3]));
      if (Tile::writes_row())
        device::store_shared_words(weigh_at_ ^ i * kStride * 2,
                                   device::pack<T>(weights.x[0], weights.x[1]),
                                   device::pack<T>(weights.x[2], weights.x[3]));
    }
    if (leads_row()) tile_.decay()[Tile::softmax_row()] = shrink;
  }

  // Of a masked block: clears values that are not finite, which a weight of zero would make NaN in
  // rows that do not see their key. Then, when all threads have, rows that see it get NaN instead.
  __device__ void clear_not_finite(int at) const {
    if (Tile::Keys::clear_not_finite(tile_.block(at)))
      atomicOr(&tile_.state().odd_keys, 1u << Tile::Keys::copy_row());
  }
  __device__ void spoil_rows(int block) const {
    const uint32_t odd = tile_.state().odd_keys;
    if (!Tile::same_in_warp(odd != 0)) return;
    const uint32_t seen = odd & visible_keys(block);
    constexpr uint16_t kNan = 0x7fff;  // of both types
    for (int i = 0; i < kRun * kRuns; ++i) {
      const int key = Tile::softmax_key() + i % kRun + i / kRun * kStride;
      if (seen >> key & 1)
        *reinterpret_cast<uint16_t*>(tile_.weights(Tile::softmax_row(), key)) = kNan;
    }
    __syncthreads();
    if (threadIdx.x == 0) tile_.state().odd_keys = 0;
  }

  // A key's scale is f 2^e. Left for gather() and weigh(): the scale, e, f and 2^-e.
  __device__ void split_scales(int from, int turn) const {
    if (Tile::warp() > 0) return;
    const int key = Tile::lane();
    const float scale =
        tile_.floats(Memory::kKeyScales)[from / Memory::kBlockBytes * kBlockKeys + key];
    const int field = min(max(__float_as_int(scale) >> 23 & 0xff, 67), 253);
    const float inverse = __int_as_float((254 - field) << 23);
    float* factors = tile_.key_factors(turn) + key;
    factors[0] = scale;
    factors[kBlockKeys] = static_cast<float>(field - 127);
    factors[2 * kBlockKeys] = scale * inverse;
    factors[3 * kBlockKeys] = inverse;
  }

  // The row's reference and sum of weights.
  __device__ float2 total() const {
    float sum = sum_[0];
    if constexpr (kRuns == 2) sum += sum_[1];
#pragma unroll
    for (int step = Tile::kRowThreads / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(device::kAllLanes, sum, step);
    return {max_, sum};
  }
  // One thread of each row.
  __device__ static bool leads_row() {
    return Tile::writes_row() && threadIdx.x % Tile::kRowThreads == 0;
  }

 private:
  __device__ static Run run_at(const float* from) {
    return *reinterpret_cast<const Run*>(from);
  }

  const Tile tile_;
  const VerifyAttentionParams& p_;
  const int prefix_;
  const uint32_t gather_at_, weigh_at_;  // scores and weights of the thread's first run
  float unit_;                           // of a score of its row, in log2
  float max_ = -INFINITY;                // exponents' reference
  float sum_[kRuns];                     // of the weights of its keys
};

}  // namespace kdt::cuda
