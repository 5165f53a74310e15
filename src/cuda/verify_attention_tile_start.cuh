// The start of a segment: its queries and first blocks of keys on their way.
#pragma once

#include "base/rounding.h"
#include "cuda/device/store.cuh"
#include "cuda/verify_attention_tile_copy.cuh"

namespace kdt::cuda {

template <typename T, int kRows, int kStages, bool kF8>
class TileStart {
  using Tile = TileShape<T, kRows, kStages, kF8>;
  using Memory = typename Tile::Memory;
  using Copies = TileCopies<T, kRows, kStages, kF8>;
  static constexpr bool kPass = Tile::kQueriesInRegisters;
  // Queries that go to registers pass through the last stages.
  static constexpr int kStaging = ceil_div(kRows * kQueryBytes, Memory::kBlockBytes);
  static constexpr int kEarly = kStages - (kPass ? kStaging : 1);
  static_assert(kEarly >= 1);

 public:
  __device__ TileStart(const Tile& tile, const VerifyAttentionParams& p,
                       const device::Segment& segment)
      : tile_(tile), p_(p), segment_(segment) {}

  // Returns where the queries are; they are there.
  template <typename Meanwhile>
  __device__ const char* copy(Copies& copies, const Meanwhile& meanwhile) const {
    copy_queries();
    for (int i = 0; i < kEarly; ++i)
      copies.fetch(segment_.first_block + i, i * Memory::kBlockBytes);
    meanwhile();
    device::wait_for_copies<kEarly>();
    __syncthreads();
    if constexpr (kF8) {
      narrow_queries();
      __syncthreads();
    }
    return queries();
  }

  // When the queries are in registers: other blocks take their place.
  __device__ static void finish(const device::Segment& segment, Copies& copies) {
    if (!kPass) return;
    __syncthreads();
    for (int i = kEarly; i < kStages - 1; ++i)
      copies.fetch(segment.first_block + i, i * Memory::kBlockBytes);
  }

 private:
  __device__ char* queries() const {
    return kPass ? tile_.block(kEarly * Memory::kBlockBytes) : tile_.shared + Memory::kQueries;
  }

  // 8 threads a row.
  __device__ void copy_queries() const {
    const int n_nodes = p_.rows.n_nodes[segment_.request];
    const int first_row = p_.rows.row_offset[segment_.request];
    if (threadIdx.x == 0) {
      tile_.state().n_nodes = n_nodes;
      tile_.state().first_row = first_row;
    }
    const int first = segment_.tile * kRows, n_rows = n_nodes * p_.n_heads - first;
    const char* all = static_cast<const char*>(p_.q) +
                      (static_cast<int64_t>(first_row) * p_.n_heads + first) * kQueryBytes;
#pragma unroll
    for (int part = 0; part < Tile::kRowWarps; ++part) {
      const int row = part * 32 + static_cast<int>(threadIdx.x) / 8;
      if (row >= kRows) break;
      const bool valid = row < n_rows;
      const uint32_t to =
          device::shared_address(queries() + Tile::query_offset(row, threadIdx.x % 8));
      const char* from = all + (valid ? row * kQueryBytes + threadIdx.x % 8 * 16 : 0);
#pragma unroll
      for (int i = 0; i < 9; ++i) device::copy_async16(to + i * 128, from + i * 128, valid);
    }
    device::commit_copies();
  }

  // bf16 queries become fp16 ones times a power of two, with which the largest of a row lies in
  // [2^14, 2^15), in the order of ScoreFragments.
  __device__ void narrow_queries() const {
    constexpr uint32_t kMagnitudes = 0x7fff7fffu;
#pragma unroll 1
    for (int part = 0; part < Tile::kRowWarps; ++part) {
      const int row = part * 32 + static_cast<int>(threadIdx.x) / 8;
      if (row >= kRows) break;  // whole warps
      const auto at = [&](int chunk) {
        return reinterpret_cast<uint4*>(queries() + Tile::query_offset(row, chunk));
      };
      uint32_t largest = 0;
      for (int step = threadIdx.x % 8; step < kWidth / 16; step += 8) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 w = *at(2 * step + half);
          largest = __vmaxu2(largest, __vmaxu2(w.x & kMagnitudes, w.y & kMagnitudes));
          largest = __vmaxu2(largest, __vmaxu2(w.z & kMagnitudes, w.w & kMagnitudes));
        }
      }
#pragma unroll
      for (int i = 4; i > 0; i /= 2)
        largest = __vmaxu2(largest, __shfl_xor_sync(device::kAllLanes, largest, i));
      const int exponent = max(max(largest >> 16, largest & 0xffffu) >> 7, 15u);
      const float factor = __int_as_float((268 - exponent) << 23);
      if (threadIdx.x % 8 == 0) tile_.query_units()[row] = __int_as_float((exponent - 14) << 23);
      const auto narrow = [&](uint32_t pair) {
        return device::pack<__half>(__uint_as_float(pair << 16) * factor,
                                    __uint_as_float(pair & 0xffff0000u) * factor);
      };
      for (int step = threadIdx.x % 8; step < kWidth / 16; step += 8) {
        const uint4 low = *at(2 * step), high = *at(2 * step + 1);
        *at(2 * step) = {narrow(low.x), narrow(low.z), narrow(high.x), narrow(high.z)};
        *at(2 * step + 1) = {narrow(low.y), narrow(low.w), narrow(high.y), narrow(high.w)};
      }
    }
  }

  const Tile tile_;
  const VerifyAttentionParams& p_;
  const device::Segment& segment_;
};

}  // namespace kdt::cuda
