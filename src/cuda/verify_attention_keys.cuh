// A block of keys in shared memory, read as K (all 576 columns) and as V (the first 512): how its
// rows lie, and the B fragments of both products.
//
// Of a row's 128 bytes, 16-byte chunk c lies at chunk c ^ (row % 8): 8 rows at one chunk, which is
// what ldmatrix reads, are in 8 different sets of banks, and what 8 threads copy is one line.
//
// FP8 codes are widened to fp16 in registers. ldmatrix moves 16-bit elements, so that codes arrive
// in pairs, and two orders follow from it that the others must share:
//   as K: the 16 dimensions of a step are multiplied in the order 0 1 4 5 8 9 12 13, 2 3 6 7 10 11
//         14 15 (the queries are stored in it);
//   as V: of 16 columns, the even ones are one tile of 8 and the odd ones the next.
#pragma once

#include <type_traits>
#include <utility>

#include "base/rounding.h"
#include "cuda/device/copy.cuh"
#include "cuda/device/fp8.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/verify_attention_split.cuh"

namespace kdt::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kBlockKeys = 32;
// Steps of 16 dimensions; quarter q of a product over the dimensions has steps q, q + 4, ...
inline constexpr int kSteps = kWidth / 16 / 4;

template <typename T, bool kF8>
struct KeyBlock {
  static constexpr int kElementBytes = kF8 ? 1 : 2;
  static constexpr int kSourceBytes = kWidth * kElementBytes;  // of a row in global memory
  static constexpr int kRowBytes = round_up(kSourceBytes, 128);
  static constexpr int kBytes = kBlockKeys * kRowBytes;

  __device__ static int lane() { return threadIdx.x % 32; }
  // Byte offset of a chunk of the row's first 128 bytes.
  __device__ static int offset(int row, int chunk) {
    return row * kRowBytes + (chunk ^ (row % 8)) * 16;
  }

  // Of copying: 8 threads a row, 8 chunks apart.
  __device__ static int copy_row() { return threadIdx.x / 8; }
  // Starts this thread's share of copying row copy_row() of a block.
  __device__ static void copy(char* block, const char* row) {
    const int chunk = threadIdx.x % 8;
    const uint32_t to = device::shared_address(block + offset(copy_row(), chunk));
    const char* from = row + chunk * 16;
    copy_chunks(to, from, std::make_integer_sequence<int, kSourceBytes / 128>());
    if (kSourceBytes % 128 != 0 && chunk * 16 < kSourceBytes % 128)
      device::copy_async16_at<kSourceBytes / 128 * 128>(to, from);
  }

  // A weight of zero does not cancel a NaN or infinite value: rows that see such a key are NaN by
  // its score already, and the others must not become so.
  __device__ static void clear_not_finite(char* block) {
#pragma unroll
    for (int i = 0; i < kLatent * kElementBytes / 16; i += 8) {
      auto* chunk = reinterpret_cast<uint4*>(block + offset(copy_row(), threadIdx.x % 8) + i * 16);
      const uint4 words = *chunk;
      const uint4 clean = {finite(words.x), finite(words.y), finite(words.z), finite(words.w)};
      const bool same =
          words.x == clean.x && words.y == clean.y && words.z == clean.z && words.w == clean.w;
      if (!same) *chunk = clean;
    }
  }

  // B fragments of K for one step of a quarter at a time, of 8 kTiles keys from `key`. Steps are
  // asked for in order; of FP8 codes of few keys, two are read at once.
  template <int kTiles>
  struct ScoreFragments {
    uint32_t words[kF8 ? kTiles : 2 * kTiles], next[2];
    uint32_t b[kTiles][2];

    __device__ void load(const char* block, int key, int quarter, int step) {
      const auto read = [&](int row, int chunk, int line, uint32_t(&r)[4]) {
        device::load_matrices(device::shared_address(block + offset(row, chunk)) + line * 128, r);
      };
      uint32_t r[4];
      if constexpr (!kF8) {
#pragma unroll
        for (int i = 0; i < 2 * kTiles; i += 4) {
          read(key + i * 4 + lane() / 16 * 8 + lane() % 8, quarter * 2 + lane() / 8 % 2, step, r);
#pragma unroll
          for (int k = 0; k < 4; ++k) words[i + k] = r[k];
        }
#pragma unroll
        for (int j = 0; j < kTiles; ++j) b[j][0] = words[2 * j], b[j][1] = words[2 * j + 1];
        return;
      }
      if constexpr (kTiles == 4) {
        read(key + lane(), quarter + step % 2 * 4, step / 2, r);
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = r[k];
      } else if (step % 2 == 0) {
        const int more = step + 1 < kSteps ? lane() / 16 : 0;
        read(key + lane() % 16, quarter + more * 4, step / 2, r);
        words[0] = r[0], words[1] = r[1], next[0] = r[2], next[1] = r[3];
      } else {
        words[0] = next[0], words[1] = next[1];
      }
#pragma unroll
      for (int j = 0; j < kTiles; ++j) {
        b[j][0] = device::widen_codes(words[j]);
        b[j][1] = device::widen_codes(words[j] >> 16);
      }
    }
  };

  // B fragments of V: keys 16 step .. + 15, four tiles of columns (of 16-bit keys 8 a tile in
  // order) from column 64 slice + 32 half.
  __device__ static void load_values(const char* block, int step, int slice, int half,
                                     uint32_t (&b)[4][2]) {
    const int row = step * 16 + lane() % 16;
#pragma unroll
    for (int i = 0; i < (kF8 ? 1 : 2); ++i) {
      const int chunk = kF8 ? slice % 2 * 4 + half * 2 : half * 4 + i * 2;
      const int bytes = offset(row, chunk + lane() / 16) + (kF8 ? slice / 2 : slice) * 128;
      uint32_t r[4];
      device::load_matrices_transposed(device::shared_address(block + bytes), r);
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        if constexpr (kF8) {
          // Bytes: keys 2t and 2t + 1 of an even column and of the odd one behind it.
          const uint32_t first = __byte_perm(r[k], 0, 0x3120);
          const uint32_t second = __byte_perm(r[2 + k], 0, 0x3120);
          b[0][k] = device::widen_codes(first);
          b[1][k] = device::widen_codes(first >> 16);
          b[2][k] = device::widen_codes(second);
          b[3][k] = device::widen_codes(second >> 16);
        } else {
          b[2 * i][k] = r[k];
          b[2 * i + 1][k] = r[2 + k];
        }
      }
    }
  }

 private:
  template <int... kIndices>
  __device__ static void copy_chunks(uint32_t to, const char* from,
                                     std::integer_sequence<int, kIndices...>) {
    (device::copy_async16_at<kIndices * 128>(to, from), ...);
  }

  __device__ static uint32_t finite(uint32_t x) {
    if constexpr (kF8) return device::clear_nan_codes(x);
    constexpr uint32_t kExponents = std::is_same_v<T, __half> ? 0x7c007c00u : 0x7f807f80u;
    return x & ~__vcmpeq2(x & kExponents, kExponents);
  }
};

}  // namespace kdt::cuda
