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
  // Starts this thread's share of copying row copy_row() to a block, if `valid`; `to`: the block's
  // address plus the offset of chunk threadIdx.x % 8 of that row.
  __device__ static void copy(uint32_t to, const char* row, bool valid) {
    const int chunk = threadIdx.x % 8;
    const char* from = row + chunk * 16;
    copy_chunks(to, from, valid, std::make_integer_sequence<int, kSourceBytes / 128>());
    if (kSourceBytes % 128 != 0)
      device::copy_async16_at<kSourceBytes / 128 * 128>(to, from,
                                                        valid && chunk * 16 < kSourceBytes % 128);
  }

  // Starts copying this warp's 128 bytes of all rows, and of four rows the last 128 bytes, if
  // `valid`; `from`: this warp's and this lane's chunk of row lane / 8.
  __device__ static void copy_columns(uint32_t block, const char* from, bool valid) {
    const int warp = threadIdx.x / 32, row = lane() / 8, chunk = lane() % 8;
    const uint32_t to = block + warp * 128 + offset(row, chunk);
    copy_rows(to, from, valid, std::make_integer_sequence<int, 8>());
    device::copy_async16_at<0>(block + 1024 + offset(warp * 4 + row, chunk),
                               from + warp * (4 * kSourceBytes - 128) + 1024, valid);
  }

  // Clears this thread's share of the values of row copy_row() that are not finite, and returns
  // whether there were any.
  __device__ static bool clear_not_finite(char* block) {
    bool any = false;
#pragma unroll 2
    for (int i = 0; i < kLatent * kElementBytes / 16; i += 8) {
      auto* chunk = reinterpret_cast<uint4*>(block + offset(copy_row(), threadIdx.x % 8) + i * 16);
      const uint4 words = *chunk;
      const uint4 clean = {finite(words.x), finite(words.y), finite(words.z), finite(words.w)};
      const bool same =
          words.x == clean.x && words.y == clean.y && words.z == clean.z && words.w == clean.w;
      if (!same) *chunk = clean;
      any |= !same;
    }
    return any;
  }

  // Where this lane's rows of ldmatrix begin in a block, for K: keys from `key`, dimensions of a
  // quarter; for V: columns from 64 slice. What lies elsewhere in 128 bytes is a flipped bit away.
  template <int kTiles>
  __device__ static uint32_t score_offset(int key, int quarter) {
    if (!kF8) return offset(key + lane() / 16 * 8 + lane() % 8, quarter * 2 + lane() / 8 % 2);
    return offset(key + (kTiles == 4 ? lane() : lane() % 16),
                  quarter + (kTiles == 4 ? 0 : lane() / 16 * 4));
  }
  __device__ static uint32_t value_offset(int slice) {
    if (kF8) return offset(lane() % 16, slice % 2 * 4 + lane() / 16) + slice / 2 * 128;
    return offset(lane() % 16, lane() / 16) + slice * 128;
  }

  // B fragments of K for one step of a quarter at a time, of 8 kTiles keys; `at`: the block's
  // address plus score_offset. Steps are asked for in order; of FP8 codes of few keys, two are read
  // at once.
  template <int kTiles>
  struct ScoreFragments {
    uint32_t words[kF8 ? kTiles : 2 * kTiles], next[2];
    uint32_t b[kTiles][2];

    __device__ void load(uint32_t at, int step) {
      uint32_t r[4];
      if constexpr (!kF8) {
#pragma unroll
        for (int i = 0; i < 2 * kTiles; i += 4) {
          device::load_matrices(at + i * 4 * kRowBytes + step * 128, r);
#pragma unroll
          for (int k = 0; k < 4; ++k) words[i + k] = r[k];
        }
#pragma unroll
        for (int j = 0; j < kTiles; ++j) b[j][0] = words[2 * j], b[j][1] = words[2 * j + 1];
        return;
      }
      if constexpr (kTiles == 4) {
        device::load_matrices((at ^ step % 2 * 64) + step / 2 * 128, r);
#pragma unroll
        for (int k = 0; k < 4; ++k) words[k] = r[k];
      } else if (step % 2 == 0) {
        // Behind the last step lies nothing of use, but within the row.
        device::load_matrices(at + step / 2 * 128, r);
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
  // order), the first or the second half of a slice; `at`: the block's address plus value_offset.
  __device__ static void load_values(uint32_t at, int step, int half, uint32_t (&b)[4][2]) {
#pragma unroll
    for (int i = 0; i < (kF8 ? 1 : 2); ++i) {
      uint32_t r[4];
      device::load_matrices_transposed(
          (at ^ (kF8 ? half * 32 : half * 64 + i * 32)) + step * 16 * kRowBytes, r);
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
  __device__ static void copy_chunks(uint32_t to, const char* from, bool valid,
                                     std::integer_sequence<int, kIndices...>) {
    (device::copy_async16_at<kIndices * 128>(to, from, valid), ...);
  }
  // Every fourth row: the swizzle of odd ones differs in one bit.
  template <int... kIndices>
  __device__ static void copy_rows(uint32_t to, const char* from, bool valid,
                                   std::integer_sequence<int, kIndices...>) {
    (device::copy_async16_at<kIndices * 4 * kRowBytes>(to ^ kIndices % 2 * 64, from, valid), ...);
  }

  __device__ static uint32_t finite(uint32_t x) {
    if constexpr (kF8) return device::clear_nan_codes(x);
    constexpr uint32_t kExponents = std::is_same_v<T, __half> ? 0x7c007c00u : 0x7f807f80u;
    return x & ~__vcmpeq2(x & kExponents, kExponents);
  }
};

}  // namespace kdt::cuda
