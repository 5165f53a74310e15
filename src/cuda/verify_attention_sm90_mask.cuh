// Which keys of a key block the rows of the wgmma attention kernel see, and what is done to values
// that must not reach the products.
#pragma once

#include "cuda/device/tma.cuh"
#include "cuda/verify_attention_sm90_args.cuh"

namespace kdt::cuda::sm90 {

struct RowWords {  // bit i = key i of the block, of two rows
  uint64_t a, b;
};

// How many of a key block's keys exist.
__device__ __forceinline__ int valid_keys(const Job& job, int key_block) {
  const int tail = key_block - prefix_blocks(job);
  const int n = tail < 0 ? job.prefix_len - key_block * kKeys : job.n_nodes - tail * kKeys;
  return n < kKeys ? n : kKeys;
}

// Whether all rows see all keys of a block.
__device__ __forceinline__ bool all_rows_see(const Job& job, int key_block) {
  return key_block < prefix_blocks(job) && valid_keys(job, key_block) == kKeys;
}

__device__ __forceinline__ uint64_t tail_word(const Args& args, const Job& job, int row, int tail) {
  const int node = (job.segment.item * kRows + row) / args.lengths.n_heads;
  if (node >= job.n_nodes) return 0;
  if (args.ancestors == nullptr) {
    const int last = node - tail * kKeys;
    return last < 0 ? 0 : last >= 63 ? ~uint64_t{0} : (uint64_t{2} << last) - 1;
  }
  return __ldg(args.ancestors + (int64_t{job.row_offset} + node) * args.n_words + tail);
}

// The keys of a block that rows `row` and `row` + 8 of the item see.
__device__ __forceinline__ RowWords row_words(const Args& args, const Job& job, int row,
                                              int key_block) {
  const int valid = valid_keys(job, key_block);
  const uint64_t exist = valid >= 64 ? ~uint64_t{0} : (uint64_t{1} << valid) - 1;
  const int tail = key_block - prefix_blocks(job);
  if (tail < 0) return {exist, exist};
  return {tail_word(args, job, row, tail) & exist, tail_word(args, job, row + 8, tail) & exist};
}

// The accumulator fragment of a block's scores, -inf where a row does not see the key.
__device__ __forceinline__ void mask_scores(float (&scores)[32], RowWords words) {
  const int shift = threadIdx.x % 4 * 2;
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const auto a = static_cast<uint32_t>(words.a >> (8 * j)) >> shift;
    const auto b = static_cast<uint32_t>(words.b >> (8 * j)) >> shift;
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      if ((a >> e & 1) == 0) scores[4 * j + e] = kNegativeInfinity;
      if ((b >> e & 1) == 0) scores[4 * j + 2 + e] = kNegativeInfinity;
    }
  }
}

// Whether a score is not finite: so is every score of a key with an element that is not.
__device__ __forceinline__ bool any_not_finite(const float (&scores)[32]) {
  bool any = false;
#pragma unroll
  for (int j = 0; j < 32; ++j) any = any || !(fabsf(scores[j]) < -kNegativeInfinity);
  return any;
}

// Whether 8 elements of a key are all finite.
template <typename Element>
__device__ __forceinline__ bool all_finite(uint4 v) {
  constexpr uint32_t kLow = __is_same(Element, Bf16) ? 0x7f80 : 0x7c00, kHigh = kLow << 16;
  bool all = true;
  for (const uint32_t x : {v.x, v.y, v.z, v.w})
    all = all && (x & kLow) != kLow && (x & kHigh) != kHigh;
  return all;
}

// Values of probability 0 must not be NaN or infinite: a warpgroup zeroes, in four tiles of a key
// block's values, those of keys that do not exist, and in the tail, where rows see different keys,
// those that are not finite. (Rows that see such a key have NaN probabilities, made of its scores.)
template <typename Element>
__device__ __forceinline__ void clear_missing_values(const Job& job, int key_block,
                                                     uint8_t (*tiles)[kTileBytes]) {
  const int valid = valid_keys(job, key_block);
  const bool in_tail = key_block >= prefix_blocks(job);
  for (int chunk = threadIdx.x % 128 + (in_tail ? 0 : valid * 8); chunk < kKeys * 8; chunk += 128) {
#pragma unroll
    for (int tile = 0; tile < 4; ++tile) {
      auto* values = reinterpret_cast<uint4*>(tiles[tile] + chunk * 16);
      if (chunk >= valid * 8 || !all_finite<Element>(*values)) *values = uint4{};
    }
  }
  fence_proxy_async();
}

}  // namespace kdt::cuda::sm90
