// One segment of tree-verify attention on the matrix units of sm_90 and up: kRows consecutive
// (node, head) rows of a request against a run of 32-key blocks. 8 warps.
//
// A key block is in shared memory once (verify_attention_keys.cuh), for both products:
//   scores   S = Q K^T, cut over the warps along the 576 dimensions in four and along keys, or of
//            64 rows along rows, in two; the four partial sums meet in shared memory;
//   softmax  (verify_attention_tile_softmax.cuh);
//   values   O += P V, each warp its own 64 of the 512 columns, O in registers.
//
// FP8 keys: queries become fp16 with a power of two a row; a key's scale goes with its score and
// its weight, the power of two in it into the exponent, so that weights stay within fp16.
//
// The bits of a row depend on its keys' blocks only, not on kRows or kStages.
#pragma once

#include "cuda/verify_attention_tile_copy.cuh"
#include "cuda/verify_attention_tile_products.cuh"
#include "cuda/verify_attention_tile_softmax.cuh"
#include "cuda/verify_attention_tile_start.cuh"

namespace kdt::cuda {

template <typename T, int kRows, int kStages, bool kF8>
class SegmentRun {
  using Tile = TileShape<T, kRows, kStages, kF8>;
  using Memory = typename Tile::Memory;
  using Start = TileStart<T, kRows, kStages, kF8>;
  using Products = TileProducts<T, kRows, kStages, kF8>;
  using Softmax = TileSoftmax<T, kRows, kStages, kF8>;
  using Scores = typename Products::Scores;
  using Run = typename Softmax::Run;
  static constexpr int kThird = kSteps / 3;
  static_assert(!kF8 || kStages > 2, "refill_blocks() copies no scales");

 public:
  // `meanwhile` runs while the first copies are under way.
  template <typename Meanwhile>
  __device__ SegmentRun(const VerifyAttentionParams& p, char* shared,
                        const device::Segment& segment, const Meanwhile& meanwhile)
      : tile_{shared},
        p_(p),
        copies_(tile_, p, segment),
        block_(segment.first_block),
        products_(tile_, Start(tile_, p, segment).copy(copies_, meanwhile)),
        softmax_(tile_, p, copies_.prefix()) {
    Start::finish(segment, copies_);
  }

  __device__ void run(const Partials& partials) {
    if constexpr (kStages > 2)
      overlap_blocks();
    else
      refill_blocks();
    store(partials);
  }

 private:
  // Two phases a block: its softmax with scores of the next one, as one stream of instructions in
  // which each hides the other's latencies; then its values.
  __device__ void overlap_blocks() {
    constexpr int kBytes = Memory::kBlockBytes, kEnd = kStages * kBytes;
    Scores s;
    device::wait_for_copies<kStages - 2>();
    __syncthreads();
    products_.template score<0, kSteps>(0, s);
    products_.keep_scores(s);
    if (kF8) softmax_.split_scales(0, block_ % 2);
    int now = 0;  // where the block is
#pragma unroll 1
    for (; block_ < copies_.end_block(); ++block_) {
      const bool masked = copies_.is_masked(block_);
      const int next = now + kBytes == kEnd ? 0 : now + kBytes;
      const int last = now == 0 ? kEnd - kBytes : now - kBytes;
      const int turn = block_ % 2;
      uint32_t visible = 0xffffffffu;
      if (masked) [[unlikely]]
        visible = softmax_.visible_keys(block_);
      device::wait_for_copies<kStages - 3>();
      __syncthreads();  // the next block and this one's scores are here, the last one is out of use
      // Behind the last block the next scores are those of an old one, and not used.
      Run own[Tile::kRuns];
      softmax_.gather(turn, visible, own);
      products_.template score<0, kThird>(next, s);
      copies_.fetch(block_ + kStages - 1, last);
      const float shrink = softmax_.raise(own);
      products_.template score<kThird, kThird>(next, s);
      softmax_.weigh(turn, shrink, own);
      products_.template score<2 * kThird, kThird>(next, s);
      if (kF8) softmax_.split_scales(next, turn ^ 1);
      if (masked) [[unlikely]]
        softmax_.clear_not_finite(now);
      // Weights are here, scores out of use.
      const bool shrinks = Tile::same_in_warp(__syncthreads_or(shrink != 1.0f));
      if (masked) [[unlikely]]
        softmax_.spoil_rows(block_);
      products_.add_values(now, shrinks, [&] { products_.keep_scores(s); });
      now = next;
    }
    device::wait_for_copies<0>();
  }

  // For want of shared memory: a block's softmax, then its values and the scores of the next one.
  // Each warp refills its columns of a block as soon as it has multiplied them.
  __device__ void refill_blocks() {
    Scores s;
    copies_.fetch(block_ + 1, Memory::kBlockBytes);
    device::wait_for_copies<1>();
    __syncthreads();
    products_.template score<0, kSteps>(0, s);
    products_.keep_scores(s);
    int now = 0;
#pragma unroll 1
    for (; block_ < copies_.end_block(); ++block_) {
      const bool masked = copies_.is_masked(block_);
      const int next = Memory::kBlockBytes - now;
      uint32_t visible = 0xffffffffu;
      if (masked) [[unlikely]]
        visible = softmax_.visible_keys(block_);
      __syncthreads();  // scores are here
      Run own[Tile::kRuns];
      softmax_.gather(0, visible, own);
      const float shrink = softmax_.raise(own);
      softmax_.weigh(0, shrink, own);
      if (masked) [[unlikely]]
        softmax_.clear_not_finite(now);
      device::wait_for_copies<0>();
      // Weights and the next block are here.
      const bool shrinks = Tile::same_in_warp(__syncthreads_or(shrink != 1.0f));
      if (masked) [[unlikely]]
        softmax_.spoil_rows(block_);
      products_.add_values(now, shrinks, [] {});
      copies_.refill(block_ + 2, now);
      products_.template score<0, kSteps>(next, s);
      products_.keep_scores(s);
      now = next;
    }
  }

  // Writes the tile's outputs, or its partial result.
  __device__ void store(const Partials& partials) {
    const device::Segment segment = tile_.state().segment;
    const bool split = segment.n_splits > 1;
    const int n_rows = tile_.n_rows(p_.n_heads);
    const int64_t first_row =
        split ? static_cast<int64_t>(segment.slot) * kRows : tile_.first_query(p_.n_heads);
    const float2 total = softmax_.total();
    __syncthreads();  // decay is out of use
    const int row = Tile::softmax_row();
    if (Softmax::leads_row() && row < n_rows) {
      tile_.decay()[row] = split ? 1.0f : total.y == 0.0f ? 0.0f : 1.0f / total.y;
      if (split)
        partials.stats[first_row + row] = total;
      else
        p_.lse[first_row + row] = natural_lse(total.x, total.y);
    }
    __syncthreads();
    products_.lay_out();
    __syncwarp();
    const int64_t first = first_row * kLatent + Tile::warp() * 64;
    if (split)
      store_rows(partials.values + first, n_rows);
    else if (p_.out_dtype == DType::kF32)
      store_rows(static_cast<float*>(p_.out) + first, n_rows);
    else
      store_narrow_rows(static_cast<uint16_t*>(p_.out) + first, n_rows);
    __syncthreads();  // shared memory is free for the next segment
  }

  // This warp's 64 columns.
  __device__ void store_rows(float* to, int n_rows) const {
    const int column = Tile::lane() % 16 * 4;
#pragma unroll 4
    for (int row = Tile::lane() / 16; row < n_rows; row += 2)
      *reinterpret_cast<float4*>(to + row * kLatent + column) =
          *reinterpret_cast<const float4*>(products_.patch(row, column));
  }
  __device__ void store_narrow_rows(uint16_t* to, int n_rows) const {
    const int column = Tile::lane() % 8 * 8;
    const bool bf16 = p_.out_dtype == DType::kBF16;
    const auto narrow = [&](float x, float y) {
      return bf16 ? device::pack<__nv_bfloat16>(x, y) : device::pack<__half>(x, y);
    };
#pragma unroll 2
    for (int row = Tile::lane() / 8; row < n_rows; row += 4) {
      const auto low = *reinterpret_cast<const float4*>(products_.patch(row, column));
      const auto high = *reinterpret_cast<const float4*>(products_.patch(row, column + 4));
      *reinterpret_cast<uint4*>(to + row * kLatent + column) = {
          narrow(low.x, low.y), narrow(low.z, low.w), narrow(high.x, high.y),
          narrow(high.z, high.w)};
    }
  }

  const Tile tile_;
  const VerifyAttentionParams& p_;
  TileCopies<T, kRows, kStages, kF8> copies_;
  int block_;
  Products products_;
  Softmax softmax_;
};

}  // namespace kdt::cuda
