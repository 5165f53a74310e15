// One segment of tree-verify attention on the matrix units of sm_80 and up: kRows consecutive
// (node, head) rows of a request against a run of 32-key blocks. 8 warps.
//
// A key block is in shared memory once, as [32, 576], and serves as K (all of it) and as V (its
// first 512 columns). Per block:
//   scores   S = Q K^T, cut over the warps along the 576 dimensions in four (K is read once), the
//            four partial sums meet in shared memory;
//   softmax  online (Milakov and Gimelshein, arXiv 1805.02867), 4 keys of a row a thread;
//   values   O += P V, each warp its own 64 of the 512 columns, O in registers.
// 16-byte chunk c of row r of a block lies at chunk c ^ (r % 8): 8 rows at one chunk, which is what
// ldmatrix reads, are in 8 different sets of banks.
// The bits of a row depend on its keys' blocks only, not on kRows or kStages.
#pragma once

#include <cuda_fp8.h>

#include "cuda/device/copy.cuh"
#include "cuda/device/mma.cuh"
#include "cuda/device/store.cuh"
#include "cuda/device/tree_mask.cuh"
#include "cuda/verify_attention_split.cuh"

namespace kdt::cuda {

inline constexpr int kTileThreads = 256;
inline constexpr int kBlockKeys = 32;
inline constexpr int kRowBytes = kWidth * 2;  // of a key or query in shared memory
inline constexpr int kBlockBytes = kBlockKeys * kRowBytes;
inline constexpr int kCodeRowBytes = kWidth + 16;  // FP8 codes, then their scale

// Byte offsets in the CTA's dynamic shared memory. 32 rows keep their queries in registers.
template <int kRows, int kStages, bool kF8>
struct TileMemory {
  static constexpr int kBlocks = 0;
  static constexpr int kCodes = kBlocks + (kF8 ? 1 : kStages) * kBlockBytes;
  static constexpr int kQueries = kCodes + (kF8 ? kStages * kBlockKeys * kCodeRowBytes : 0);
  static constexpr int kScores = kQueries + (kRows > 32 ? kRows * kRowBytes : 0);
  static constexpr int kWeights = kScores + 4 * kRows * kBlockKeys * 4;
  static constexpr int kDecay = kWeights + kRows * kBlockKeys * 2;
  static constexpr int kKeyScales = kDecay + kRows * 4;
  static constexpr int kSchedule = kKeyScales + kBlockKeys * 4;
  static constexpr int kBytes =
      kSchedule + static_cast<int>(sizeof(device::Schedule<kRows, kBlockKeys>));
};

template <typename T, int kRows, int kStages, bool kF8>
class SegmentRun {
  using Memory = TileMemory<kRows, kStages, kF8>;
  static constexpr bool kQueriesInRegisters = kRows == 32;
  static constexpr int kRowWarps = kRows / 32;       // warps side by side along the rows of S
  static constexpr int kKeyWarps = 2 / kRowWarps;    // and along its keys
  static constexpr int kScoreTiles = 4 / kKeyWarps;  // of 8 keys, in a warp's part of S
  static constexpr int kSteps = kWidth / 16 / 4;     // of 16 dimensions, in a warp's part of them
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kRowThreads = kTileThreads / kRows;  // threads that share a row in softmax
  static constexpr int kQuads = kRows / 32;                 // times 4 keys each
  // Key blocks that are under way while one is used. FP8 codes leave their stage before that.
  static constexpr int kAhead = kF8 ? kStages : kStages - 1;

 public:
  __device__ SegmentRun(const VerifyAttentionParams& p, char* shared,
                        const device::Segment& segment)
      : p_(p), shared_(shared), segment_(segment) {
    const int request = segment.request;
    prefix_ = p.rows.prefix_len[request];
    n_nodes_ = p.rows.n_nodes[request];
    first_row_ = p.rows.row_offset[request];
    first_query_ = static_cast<int64_t>(first_row_) * p.n_heads + segment.tile * kRows;
    n_rows_ = min(n_nodes_ * p.n_heads - segment.tile * kRows, kRows);
    node_ = (segment.tile * kRows + softmax_row()) / p.n_heads;
    page_ = page_of(segment.first_block);
  }

  __device__ void run(const Partials& partials) {
    start_queries();
    for (int i = 0; i < kAhead; ++i) fetch(segment_.first_block + i, i);
    keep_queries();
    for (int i = 0; i < segment_.end_block - segment_.first_block; ++i) {
      const int block = segment_.first_block + i;
      const bool masked = (block + 1) * kBlockKeys > prefix_;
      device::wait_for_copies<kAhead - 1>();
      __syncthreads();  // the block is here, and the last one is out of use
      if (kF8) expand_codes(i % kStages);
      fetch(block + kAhead, (i + kAhead) % kStages);
      if (kF8) __syncthreads();
      const char* keys = shared_ + Memory::kBlocks + (kF8 ? 0 : i % kStages * kBlockBytes);
      score(keys);
      __syncthreads();
      soften(block, masked);
      if (masked) clear_not_finite(const_cast<char*>(keys));
      __syncthreads();
      add_values(keys);
    }
    device::wait_for_copies<0>();
    finish(partials);
  }

 private:
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  __device__ static int softmax_row() { return threadIdx.x / kRowThreads; }
  // Copies: 8 threads a row of a block or of 32 queries.
  __device__ static int copy_row() { return threadIdx.x / 8; }
  __device__ static int copy_chunk() { return threadIdx.x % 8; }
  // Of the chunk that this thread copies first; the others follow 8 chunks apart.
  __device__ static int copy_offset() {
    return copy_row() * kRowBytes + (copy_chunk() ^ (copy_row() % 8)) * 16;
  }
  // Where score() leaves S: partial sums of the dimensions, keys in groups of 8 that rows permute
  // so that neither its writes nor soften()'s reads meet in a bank.
  __device__ float* scores(int part, int row, int key) const {
    const int permuted = key ^ ((row & 1) << 4 | (row & 2) << 2);
    return reinterpret_cast<float*>(shared_ + Memory::kScores) + (part * kRows + row) * kBlockKeys +
           permuted;
  }
  // Byte offset of keys 8 chunk .. 8 chunk + 7 of a row of P.
  __device__ static int weight_offset(int row, int chunk) {
    return row * kBlockKeys * 2 + (chunk ^ (row / 2 % 4)) * 16;
  }
  __device__ float* decay() const { return reinterpret_cast<float*>(shared_ + Memory::kDecay); }
  __device__ float* key_scales() const {
    return reinterpret_cast<float*>(shared_ + Memory::kKeyScales);
  }

  __device__ void start_queries() {
    constexpr int kStaging = kF8 ? Memory::kBlocks : Memory::kBlocks + (kStages - 1) * kBlockBytes;
    const uint32_t to = device::shared_address(
        shared_ + (kQueriesInRegisters ? kStaging : Memory::kQueries) + copy_offset());
    const char* from = static_cast<const char*>(p_.q) + (first_query_ + copy_row()) * kRowBytes +
                       copy_chunk() * 16;
#pragma unroll
    for (int part = 0; part < kRows / 32; ++part) {
      const bool valid = copy_row() + part * 32 < n_rows_;
      const char* row = valid ? from + part * 32 * kRowBytes : static_cast<const char*>(p_.q);
#pragma unroll
      for (int i = 0; i < 9; ++i)
        device::copy_async16(to + part * 32 * kRowBytes + i * 128, row + i * 128, valid);
    }
    device::commit_copies();
  }

  // The A fragment of rows `row` .. + 15 and 16-dimension step `step` of a [rows, 576] tile.
  __device__ void load_rows(const char* tile, int row, int step, uint32_t (&a)[4]) const {
    const int r = row + lane() % 16, chunk = 2 * step + lane() / 16;
    device::load_matrices(device::shared_address(tile + r * kRowBytes + (chunk ^ (r % 8)) * 16), a);
  }

  __device__ void keep_queries() {
    if constexpr (kQueriesInRegisters) {
      constexpr int kStaging =
          kF8 ? Memory::kBlocks : Memory::kBlocks + (kStages - 1) * kBlockBytes;
      device::wait_for_copies<kAhead>();
      __syncthreads();
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          load_rows(shared_ + kStaging, i * 16, warp() % 4 * kSteps + step, queries_[i][step]);
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) out_[i][j][k] = 0.0f;
    max_ = -INFINITY;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) sum_[i] = 0.0f;
  }

  // The page of a block; a block lies in one page.
  __device__ int page_of(int block) const {
    const int key = block * kBlockKeys;
    if (key >= prefix_) return 0;
    return p_.rows.block_table[static_cast<int64_t>(segment_.request) * p_.rows.max_blocks +
                               key / kPageTokens];
  }

  // Starts copying a block, if the segment has it; the page of the next one is read meanwhile.
  __device__ void fetch(int block, int stage) {
    if (block < segment_.end_block) {
      constexpr int kSourceBytes = kF8 ? kWidth : kRowBytes;
      const int key = block * kBlockKeys + copy_row();
      const bool cached = key < prefix_, valid = key < prefix_ + n_nodes_;
      const int64_t row = cached  ? static_cast<int64_t>(page_) * kPageTokens + key % kPageTokens
                          : valid ? static_cast<int64_t>(first_row_) + key - prefix_
                                  : 0;
      const char* from = static_cast<const char*>(cached ? p_.kv_pages : p_.tail) +
                         row * kSourceBytes + copy_chunk() * 16;
      if constexpr (kF8) {
        const uint32_t to = device::shared_address(
            shared_ + Memory::kCodes + (stage * kBlockKeys + copy_row()) * kCodeRowBytes);
#pragma unroll
        for (int i = 0; i < 5; ++i)
          if (copy_chunk() + 8 * i < kWidth / 16)
            device::copy_async16(to + copy_chunk() * 16 + i * 128, from + i * 128, valid);
        if (copy_chunk() == 0)
          device::copy_async4(to + kWidth, (cached ? p_.page_scales : p_.tail_scales) + row, valid);
      } else {
        const uint32_t to =
            device::shared_address(shared_ + Memory::kBlocks + stage * kBlockBytes + copy_offset());
#pragma unroll
        for (int i = 0; i < 9; ++i) device::copy_async16(to + i * 128, from + i * 128, valid);
      }
      page_ = page_of(block + 1);
    }
    device::commit_copies();
  }

  // FP8 codes as 16-bit numbers, exactly. A thread expands the chunks that it copied itself.
  __device__ void expand_codes(int stage) {
    const char* row = shared_ + Memory::kCodes + (stage * kBlockKeys + copy_row()) * kCodeRowBytes;
    char* to = shared_ + Memory::kBlocks + copy_row() * kRowBytes;
#pragma unroll
    for (int i = 0; i < 5; ++i) {
      const int chunk = copy_chunk() + 8 * i;
      if (chunk >= kWidth / 16) break;
      const uint4 codes = *reinterpret_cast<const uint4*>(row + chunk * 16);
      const uint32_t words[4] = {codes.x, codes.y, codes.z, codes.w};
      uint32_t wide[8];
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto pair = static_cast<__nv_fp8x2_storage_t>(words[j / 2] >> (j % 2 * 16));
        const __half2 halves = __nv_cvt_fp8x2_to_halfraw2(pair, __NV_E4M3);
        const float2 values = __half22float2(halves);
        wide[j] = device::pack<T>(values.x, values.y);
      }
#pragma unroll
      for (int j = 0; j < 2; ++j)
        *reinterpret_cast<uint4*>(to + ((2 * chunk + j) ^ (copy_row() % 8)) * 16) = {
            wide[4 * j], wide[4 * j + 1], wide[4 * j + 2], wide[4 * j + 3]};
    }
    if (copy_chunk() == 0) key_scales()[copy_row()] = *reinterpret_cast<const float*>(row + kWidth);
  }

  __device__ void score(const char* keys) {
    const int part = warp() % 4, row = warp() / 4 % kRowWarps * 32;
    const int first_key = kRowWarps == 1 ? warp() / 4 * 16 : 0;
    float s[2][kScoreTiles][4] = {};
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      const int dimensions = part * kSteps + step;
      uint32_t a[2][4];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        if constexpr (kQueriesInRegisters) {
#pragma unroll
          for (int k = 0; k < 4; ++k) a[i][k] = queries_[i][step][k];
        } else {
          load_rows(shared_ + Memory::kQueries, row + i * 16, dimensions, a[i]);
        }
      }
#pragma unroll
      for (int j = 0; j < kScoreTiles; j += 2) {  // 16 keys
        const int key = first_key + j * 8 + lane() % 8 + lane() / 16 * 8;
        const int chunk = 2 * dimensions + lane() / 8 % 2;
        uint32_t b[4];
        device::load_matrices(
            device::shared_address(keys + key * kRowBytes + (chunk ^ (key % 8)) * 16), b);
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          device::multiply_add<T>(s[i][j], a[i], b[0], b[1]);
          device::multiply_add<T>(s[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 2; ++i)
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
        for (int k = 0; k < 2; ++k)
          *reinterpret_cast<float2*>(scores(part, row + i * 16 + lane() / 4 + 8 * k,
                                            first_key + j * 8 + lane() % 4 * 2)) = {
              s[i][j][2 * k], s[i][j][2 * k + 1]};
  }

  // Keys key .. key + 3 of this thread's row, in units of log2.
  __device__ float4 scaled_scores(int key) const {
    float4 s = *reinterpret_cast<const float4*>(scores(0, softmax_row(), key));
#pragma unroll
    for (int part = 1; part < 4; ++part) {
      const float4 more = *reinterpret_cast<const float4*>(scores(part, softmax_row(), key));
      s.x += more.x;
      s.y += more.y;
      s.z += more.z;
      s.w += more.w;
    }
    float4 scale = {1.0f, 1.0f, 1.0f, 1.0f};
    if constexpr (kF8) scale = *reinterpret_cast<const float4*>(key_scales() + key);
    const float unit = p_.scale * 1.44269504089f;
    return {s.x * (unit * scale.x), s.y * (unit * scale.y), s.z * (unit * scale.z),
            s.w * (unit * scale.w)};
  }

  // Scores become weights; the row's largest score and sum move on.
  __device__ void soften(int block, bool masked) {
    const int row = softmax_row(), first = threadIdx.x % kRowThreads * 4;
    uint32_t visible = 0xffffffffu;
    if (masked && row < n_rows_) {
      const uint64_t* words =
          p_.ancestors ? p_.ancestors + (static_cast<int64_t>(first_row_) + node_) * p_.n_words
                       : nullptr;
      visible = device::visible_keys(words, node_, n_nodes_, prefix_, block * kBlockKeys);
    }
    float s[kQuads][4];
    float largest = max_;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int key = first + 16 * i;
      const float4 quad = scaled_scores(key);
      const float values[4] = {quad.x, quad.y, quad.z, quad.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        s[i][k] = visible >> (key + k) & 1 ? values[k] : -INFINITY;
        largest = fmaxf(largest, s[i][k]);
      }
    }
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
    const float shift = largest == -INFINITY ? 0.0f : largest;  // -inf - -inf would be NaN
    const float shrink = exp2f(max_ - shift);
    max_ = largest;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const int key = first + 16 * i;
#pragma unroll
      for (int k = 0; k < 4; ++k) s[i][k] = exp2f(s[i][k] - shift);
      sum_[i] = sum_[i] * shrink + ((s[i][0] + s[i][1]) + (s[i][2] + s[i][3]));
      if constexpr (kF8) {  // a key that is not seen stays out even with a scale of NaN
#pragma unroll
        for (int k = 0; k < 4; ++k)
          if (s[i][k] != 0.0f) s[i][k] *= key_scales()[key + k];
      }
      *reinterpret_cast<uint2*>(shared_ + Memory::kWeights + weight_offset(row, key / 8) +
                                key % 8 * 2) = {device::pack<T>(s[i][0], s[i][1]),
                                                device::pack<T>(s[i][2], s[i][3])};
    }
    if (threadIdx.x % kRowThreads == 0) decay()[row] = shrink;
  }

  // A weight of zero does not cancel a NaN or infinite value: rows that see such a key are NaN by
  // its score already, and the others must not become so.
  __device__ void clear_not_finite(char* keys) const {
    constexpr uint32_t kExponents = std::is_same_v<T, __half> ? 0x7c007c00u : 0x7f807f80u;
#pragma unroll
    for (int i = 0; i < kLatent / 64; ++i) {
      auto* chunk = reinterpret_cast<uint4*>(keys + copy_offset() + i * 128);
      uint4 words = *chunk;
      const auto not_finite = [&](uint32_t x) {
        return ((x & kExponents) >> 16 == kExponents >> 16 ? 0xffff0000u : 0u) |
               ((x & kExponents & 0xffffu) == (kExponents & 0xffffu) ? 0xffffu : 0u);
      };
      const uint4 bad = {not_finite(words.x), not_finite(words.y), not_finite(words.z),
                         not_finite(words.w)};
      if (!(bad.x | bad.y | bad.z | bad.w)) continue;
      *chunk = {words.x & ~bad.x, words.y & ~bad.y, words.z & ~bad.z, words.w & ~bad.w};
    }
  }

  __device__ void add_values(const char* keys) {
    float shrink[kRowTiles][2];
    bool changed = false;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        shrink[i][k] = decay()[i * 16 + lane() / 4 + 8 * k];
        changed |= shrink[i][k] != 1.0f;
      }
    if (__any_sync(0xffffffffu, changed)) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int j = 0; j < 8; ++j)
#pragma unroll
          for (int k = 0; k < 4; ++k) out_[i][j][k] *= shrink[i][k / 2];
    }
#pragma unroll
    for (int step = 0; step < kBlockKeys / 16; ++step) {
      uint32_t a[kRowTiles][4];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
        device::load_matrices(
            device::shared_address(shared_ + Memory::kWeights +
                                   weight_offset(i * 16 + lane() % 16, 2 * step + lane() / 16)),
            a[i]);
#pragma unroll
      for (int j = 0; j < 8; j += 2) {  // 16 columns
        const int key = step * 16 + lane() % 16, chunk = warp() * 8 + j + lane() / 16;
        uint32_t b[4];
        device::load_matrices_transposed(
            device::shared_address(keys + key * kRowBytes + (chunk ^ (key % 8)) * 16), b);
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          device::multiply_add<T>(out_[i][j], a[i], b[0], b[1]);
          device::multiply_add<T>(out_[i][j + 1], a[i], b[2], b[3]);
        }
      }
    }
  }

  // Writes the tile's outputs, or its partial result.
  __device__ void finish(const Partials& partials) {
    const bool split = segment_.n_splits > 1;
    const int row = softmax_row();
    float sum = kQuads == 2 ? sum_[0] + sum_[kQuads - 1] : sum_[0];
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    const int64_t partial_row = static_cast<int64_t>(segment_.slot) * kRows;
    __syncthreads();  // decay is out of use
    if (threadIdx.x % kRowThreads == 0 && row < n_rows_) {
      decay()[row] = split ? 1.0f : sum == 0.0f ? 0.0f : 1.0f / sum;
      if (split)
        partials.stats[partial_row + row] = {max_, sum};
      else
        p_.lse[first_query_ + row] = natural_lse(max_, sum);
    }
    __syncthreads();
    void* to = split ? static_cast<void*>(partials.values) : p_.out;
    const int64_t first_row = split ? partial_row : first_query_;
    const bool f32 = split || p_.out_dtype == DType::kF32, bf16 = p_.out_dtype == DType::kBF16;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int r = i * 16 + lane() / 4 + 8 * k;
        if (r >= n_rows_) continue;
        const float factor = decay()[r];
        const int64_t index = (first_row + r) * kLatent + warp() * 64 + lane() % 4 * 2;
#pragma unroll
        for (int j = 0; j < 8; ++j)
          device::store_pair(to, f32, bf16, index + j * 8, out_[i][j][2 * k] * factor,
                             out_[i][j][2 * k + 1] * factor);
      }
    __syncthreads();  // shared memory is free for the next segment
  }

  const VerifyAttentionParams& p_;
  char* const shared_;
  const device::Segment segment_;
  int prefix_, n_nodes_, first_row_, n_rows_;  // n_rows_: of the tile
  int64_t first_query_;                        // of the tile, in the buffers
  int node_;                                   // of this thread's row in softmax
  int page_;                                   // of the next block to fetch
  uint32_t queries_[2][kSteps][4];             // A fragments, when kQueriesInRegisters
  float out_[kRowTiles][8][4];                 // C fragments of this warp's 64 columns
  float max_;                                  // of this thread's row
  float sum_[kQuads];                          // of its keys
};

}  // namespace kdt::cuda
