// The two products over a block of keys, and the output that they add up in registers.
#pragma once

#include "cuda/device/store.cuh"
#include "cuda/verify_attention_tile_memory.cuh"

namespace kdt::cuda {

template <typename T, int kRows, int kStages, bool kF8>
class TileProducts {
  using Tile = TileShape<T, kRows, kStages, kF8>;
  using Memory = typename Tile::Memory;
  using Keys = typename Tile::Keys;
  static constexpr int kRowTiles = Tile::kRowTiles, kWarpTiles = Tile::kWarpTiles;
  static constexpr int kScoreTiles = Tile::kScoreTiles;
  // Steps whose queries stay in registers; of 64 rows as many as there is room for.
  static constexpr int kKept = Tile::kQueriesInRegisters ? kSteps : kF8 ? 0 : 2;

 public:
  // Of this warp's part of S.
  struct Scores {
    float c[kWarpTiles][kScoreTiles][4];
    typename Keys::template ScoreFragments<kScoreTiles> k;
  };

  // `queries`: where they are in shared memory, by now.
  __device__ TileProducts(const Tile& tile, const char* queries)
      : tile_(tile),
        queries_at_(device::shared_address(
            queries + Tile::query_offset(Tile::score_row() + Tile::lane() % 16,
                                         Tile::warp() % 4 * 2 + Tile::lane() / 16))),
        keys_at_(Tile::kept(tile.block(
            Keys::template score_offset<kScoreTiles>(Tile::score_key(), Tile::warp() % 4)))),
        scores_at_(Tile::kept(tile.scores(Tile::warp() % 4, Tile::score_row() + Tile::lane() / 4,
                                          Tile::score_key() + Tile::lane() % 4 * 2))),
        weights_at_(Tile::kept(tile.weights(Tile::lane() % 16, Tile::lane() / 16 * 8))),
        values_at_(Tile::kept(tile.block(Keys::value_offset(Tile::warp())))) {
#pragma unroll
    for (int step = 0; step < kKept; ++step)
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) load_queries(i, step, kept_[i][step]);
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) out_[i][j][k] = 0.0f;
  }

  // Adds kCount steps of this warp's quarter of the dimensions to S.
  template <int kFirst, int kCount>
  __device__ void score(int block, Scores& s) const {
    if constexpr (kFirst == 0) {
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i)
#pragma unroll
        for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) s.c[i][j][c] = 0.0f;
    }
#pragma unroll
    for (int step = kFirst; step < kFirst + kCount; ++step) {
      uint32_t a[kWarpTiles][4];
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) {
        if (step < kKept) {
#pragma unroll
          for (int c = 0; c < 4; ++c) a[i][c] = kept_[i][step][c];
        } else {
          load_queries(i, step, a[i]);
        }
      }
      s.k.load(keys_at_ + block, step);
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
        for (int i = 0; i < kWarpTiles; ++i)
          device::multiply_add<T>(s.c[i][j], a[i], s.k.b[j][0], s.k.b[j][1]);
    }
  }

  __device__ void keep_scores(const Scores& s) const {
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i)
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          device::store_shared_pair((scores_at_ ^ j * 32) + (i * 16 + 8 * c) * kBlockKeys * 4,
                                    s.c[i][j][2 * c], s.c[i][j][2 * c + 1]);
  }

  // Shrinks the output if some row does, then adds P V. between() runs when half of it is under
  // way.
  template <typename Between>
  __device__ void add_values(int block, bool shrinks, const Between& between) {
    if (shrinks) [[unlikely]] {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float shrink = tile_.decay()[i * 16 + Tile::lane() / 4 + k / 2 * 8];
#pragma unroll
          for (int j = 0; j < 8; ++j) out_[i][j][k] *= shrink;
        }
    }
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        device::load_matrices((weights_at_ ^ step * 32) + i * 16 * kBlockKeys * 2, a[i]);
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        uint32_t b[4][2];
        Keys::load_values(values_at_ + block, step, half, b);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i)
            device::multiply_add<T>(out_[i][4 * half + j], a[i], b[j][0], b[j][1]);
      }
      if (step == 0) between();
    }
  }

  // Where a warp's 64 columns of the output become rows, in place of keys, queries and scores.
  __device__ float* patch(int row, int column) const {
    constexpr int kStride = 64 + 8;
    static_assert(8 * kRows * kStride * 4 <= Memory::kDecay - Memory::kBlocks);
    return tile_.floats(Memory::kBlocks) + (Tile::warp() * kRows + row) * kStride + column;
  }
  // Lays the output out there, times decay().
  __device__ void lay_out() const {
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int row = i * 16 + Tile::lane() / 4 + 8 * k;
        const float factor = tile_.decay()[row];
        // Tiles j and j + 1: columns 2t, 2t + 1 of each, or 4t .. 4t + 3 with every second in each.
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const float* low = &out_[i][j][2 * k];
          const float* high = &out_[i][j + 1][2 * k];
          float* to = patch(row, j * 8 + Tile::lane() % 4 * (kF8 ? 4 : 2));
          *reinterpret_cast<float2*>(to) = {low[0] * factor, (kF8 ? high[0] : low[1]) * factor};
          *reinterpret_cast<float2*>(to + (kF8 ? 2 : 8)) = {(kF8 ? low[1] : high[0]) * factor,
                                                            high[1] * factor};
        }
      }
  }

 private:
  // The A fragment of 16 rows of this warp's part of S and a step of its quarter of the dimensions.
  __device__ void load_queries(int i, int step, uint32_t (&a)[4]) const {
    device::load_matrices(queries_at_ + i * 16 * kQueryBytes + step * 128, a);
  }

  const Tile tile_;
  // Where this lane reads and writes: of 16 rows of queries, of the first block as K, of partial
  // sums, of weights, of the first block as V.
  const uint32_t queries_at_, keys_at_, scores_at_, weights_at_, values_at_;
  uint32_t kept_[kWarpTiles][kKept > 0 ? kKept : 1][4];  // A fragments of queries
  float out_[kRowTiles][8][4];                           // C fragments of this warp's 64 columns
};

}  // namespace kdt::cuda
