// One segment of tree-verify attention on the matrix units of sm_80 and up: kRows consecutive
// (node, head) rows of a request against a run of 32-key blocks. 8 warps.
//
// A key block is in shared memory once (verify_attention_keys.cuh), for both products:
//   scores   S = Q K^T, cut over the warps along the 576 dimensions in four and along keys, or of
//            64 rows along rows, in two; the four partial sums meet in shared memory;
//   softmax  online (Milakov and Gimelshein, arXiv 1805.02867), 4 or 8 keys of a row a thread;
//   values   O += P V, each warp its own 64 of the 512 columns, O in registers.
// Two phases a block: first the softmax of block i and the scores of block i + 1, as one stream of
// instructions in which each hides the other's latencies; then the values of block i.
//
// FP8 keys: queries become fp16 with a power of two a row; a key's scale goes with its score and
// its weight, the power of two in it into the exponent, so that weights stay within fp16.
//
// The bits of a row depend on its keys' blocks only, not on kRows or kStages.
#pragma once

#include "cuda/device/exp2.cuh"
#include "cuda/device/store.cuh"
#include "cuda/device/tree_mask.cuh"
#include "cuda/verify_attention_keys.cuh"

namespace kdt::cuda {

inline constexpr int kQueryBytes = kWidth * 2;  // of a row of queries in shared memory

// What a thread block remembers while a segment takes all registers.
struct alignas(16) TileState {
  device::Segment segment;
  device::Cursor cursor;
};

// Byte offsets in the CTA's dynamic shared memory. 16 and 32 rows keep their queries in registers.
template <int kRows, int kStages, bool kF8>
struct TileMemory {
  static constexpr int kBlocks = 0;
  static constexpr int kBlockBytes = KeyBlock<__half, kF8>::kBytes;
  static constexpr int kQueries = kBlocks + kStages * kBlockBytes;
  static constexpr int kScores = kQueries + (kRows > 32 ? kRows * kQueryBytes : 0);
  static constexpr int kWeights = kScores + 4 * kRows * kBlockKeys * 4;
  static constexpr int kDecay = kWeights + kRows * kBlockKeys * 2;
  static constexpr int kState = kDecay + kRows * 4;
  static constexpr int kQueryUnits = kState + static_cast<int>(sizeof(TileState));
  // Of FP8 keys: scales as copied, of each stage, and split, of two blocks.
  static constexpr int kKeyScales = kQueryUnits + (kF8 ? kRows * 4 : 0);
  static constexpr int kKeyFactors = kKeyScales + (kF8 ? kStages * kBlockKeys * 4 : 0);
  static constexpr int kSchedule = kKeyFactors + (kF8 ? 2 * 4 * kBlockKeys * 4 : 0);
  static constexpr int kBytes =
      kSchedule + static_cast<int>(sizeof(device::Schedule<kRows, kBlockKeys>));
};

template <typename T, int kRows, int kStages, bool kF8>
class SegmentRun {
  using Memory = TileMemory<kRows, kStages, kF8>;
  using Keys = KeyBlock<T, kF8>;
  static constexpr bool kQueriesInRegisters = kRows <= 32;
  static constexpr int kRowWarps = kRows > 32 ? kRows / 32 : 1;   // along the rows of S
  static constexpr int kWarpTiles = kRows / 16 / kRowWarps;       // of 16 rows, in a warp's part
  static constexpr int kKeyWarps = 2 / kRowWarps;                 // and along its keys
  static constexpr int kScoreTiles = kBlockKeys / 8 / kKeyWarps;  // of 8 keys, in a warp's part
  static constexpr int kRowTiles = kRows / 16;
  static constexpr int kRowThreads = kRows > 32 ? 4 : 8;  // that share a row in softmax
  static constexpr int kRun = 4;                          // keys side by side in a thread
  static constexpr int kRuns = kBlockKeys / kRowThreads / kRun;
  // A row's reference moves when a score is this much above it, in log2.
  static constexpr float kSlack = 8.0f;
  // Queries pass through the last stages on their way to registers.
  static constexpr int kStaging = ceil_div(kRows * kQueryBytes, Memory::kBlockBytes);
  static constexpr int kEarly = kStages - (kQueriesInRegisters ? kStaging : 1);
  static_assert(kEarly >= 1);

  using Scores = float[kWarpTiles][kScoreTiles][4];  // C fragments of this warp's part of S
  using Fragments = typename Keys::template ScoreFragments<kScoreTiles>;
  struct alignas(kRun * 4) Run {
    float x[kRun];
  };
  struct alignas(kRun * 2) Packed {
    uint32_t x[kRun / 2];
  };

 public:
  __device__ SegmentRun(const VerifyAttentionParams& p, char* shared,
                        const device::Segment& segment)
      : p_(p),
        shared_(shared),
        request_(segment.request),
        first_block_(segment.first_block),
        end_block_(segment.end_block),
        prefix_(p.rows.prefix_len[segment.request]),
        n_nodes_(p.rows.n_nodes[segment.request]),
        first_row_(p.rows.row_offset[segment.request]),
        node_((segment.tile * kRows + softmax_row()) / p.n_heads),
        page_(page_of(segment.first_block)) {
    start(segment.tile);
  }

  __device__ void run(const Partials& partials) {
    if constexpr (kStages > 2)
      overlap_blocks();
    else
      take_blocks_in_turn();
    finish(partials);
  }

 private:
  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  // Of 16 rows, half of the threads do what the others do, and write nothing.
  __device__ static int softmax_row() { return threadIdx.x / kRowThreads % kRows; }
  __device__ static bool writes_row() { return kRows > 16 || threadIdx.x < kTileThreads / 2; }
  __device__ char* stage(int i) const {
    return shared_ + Memory::kBlocks + i * Memory::kBlockBytes;
  }
  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(shared_ + offset); }
  __device__ float* decay() const { return floats(Memory::kDecay); }
  // Of the queries of a row and of the keys of a block, see narrow_queries and split_scales.
  __device__ float* query_units() const { return floats(Memory::kQueryUnits); }
  __device__ float* key_factors(int turn) const {
    return floats(Memory::kKeyFactors) + turn * 4 * kBlockKeys;
  }
  __device__ TileState& state() const {
    return *reinterpret_cast<TileState*>(shared_ + Memory::kState);
  }
  __device__ char* queries() const {
    return kQueriesInRegisters ? stage(kEarly) : shared_ + Memory::kQueries;
  }
  __device__ static int query_offset(int row, int chunk) {
    return row * kQueryBytes + (chunk ^ (row % 8)) * 16;
  }
  // Where score() leaves S: partial sums of the dimensions, keys in groups of 8 that rows permute
  // so that neither its writes nor gather()'s reads meet in a bank.
  __device__ float* scores(int part, int row, int key) const {
    const int permuted = key ^ ((row & 1) << 4 | (row & 2) << 2);
    return floats(Memory::kScores) + (part * kRows + row) * kBlockKeys + permuted;
  }
  // Byte offset of keys 8 chunk .. 8 chunk + 7 of a row of P.
  __device__ static int weight_offset(int row, int chunk) {
    return row * kBlockKeys * 2 + (chunk ^ (row / 2 % 4)) * 16;
  }

  // Rows of a tile.
  __device__ int n_rows(int tile) const { return min(n_nodes_ * p_.n_heads - tile * kRows, kRows); }
  // Its first row in the buffers.
  __device__ int64_t first_query(int tile) const {
    return static_cast<int64_t>(first_row_) * p_.n_heads + tile * kRows;
  }

  // Queries and the first blocks.
  __device__ void start(int tile) {
    const int thread = threadIdx.x % 8;
#pragma unroll
    for (int part = 0; part < kRowWarps; ++part) {
      const int row = part * 32 + static_cast<int>(threadIdx.x) / 8;
      if (row >= kRows) break;
      const bool valid = row < n_rows(tile);
      const uint32_t to = device::shared_address(queries() + query_offset(row, thread));
      const char* from = static_cast<const char*>(p_.q) +
                         (valid ? (first_query(tile) + row) * kQueryBytes + thread * 16 : 0);
#pragma unroll
      for (int i = 0; i < 9; ++i) device::copy_async16(to + i * 128, from + i * 128, valid);
    }
    device::commit_copies();
    for (int i = 0; i < kEarly; ++i) fetch(first_block_ + i, i);
    if (kF8 || kQueriesInRegisters) {
      device::wait_for_copies<kEarly>();
      __syncthreads();
    }
    unit_ = p_.scale * device::kLog2E;
    if constexpr (kF8) {
      narrow_queries();
      __syncthreads();
      unit_ *= query_units()[softmax_row()];
    }
    if constexpr (kQueriesInRegisters) {
#pragma unroll
      for (int step = 0; step < kSteps; ++step)
#pragma unroll
        for (int i = 0; i < kWarpTiles; ++i) load_queries(i * 16, step, kept_[i][step]);
      __syncthreads();
      for (int i = kEarly; i < kStages - 1; ++i) fetch(first_block_ + i, i);
    }
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int j = 0; j < 8; ++j)
#pragma unroll
        for (int k = 0; k < 4; ++k) out_[i][j][k] = 0.0f;
    max_ = -INFINITY;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) sum_[i] = 0.0f;
  }

  // bf16 queries become fp16 ones times a power of two, with which the largest of a row lies in
  // [2^14, 2^15), in the order of ScoreFragments.
  __device__ void narrow_queries() {
    constexpr uint32_t kMagnitudes = 0x7fff7fffu;
#pragma unroll 1
    for (int part = 0; part < kRowWarps; ++part) {
      const int row = part * 32 + static_cast<int>(threadIdx.x) / 8;
      if (row >= kRows) break;  // whole warps
      const auto at = [&](int chunk) {
        return reinterpret_cast<uint4*>(queries() + query_offset(row, chunk));
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
      if (threadIdx.x % 8 == 0) query_units()[row] = __int_as_float((exponent - 14) << 23);
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

  // The A fragment of rows `row` .. + 15 and a step of this warp's quarter of the dimensions.
  __device__ void load_queries(int row, int step, uint32_t (&a)[4]) const {
    const int bytes = query_offset(row + lane() % 16, warp() % 4 * 2 + lane() / 16);
    device::load_matrices(device::shared_address(queries() + bytes) + step * 128, a);
  }

  // Softmax of a block together with the scores of the next one.
  __device__ void overlap_blocks() {
    Scores s;
    Fragments k;
    device::wait_for_copies<kStages - 2>();
    __syncthreads();
    score<0, kSteps>(stage(0), k, s);
    keep_scores(s);
    if (kF8) split_scales(0, first_block_ % 2);
    int now = 0;  // stage of the block
    for (int block = first_block_; block < end_block_; ++block) {
      const bool masked = (block + 1) * kBlockKeys > prefix_;
      const int next = now + 1 == kStages ? 0 : now + 1, turn = block % 2;
      const uint32_t visible = masked ? visible_keys(block) : 0xffffffffu;
      device::wait_for_copies<kStages - 3>();
      __syncthreads();  // the next block and this one's scores are here, the last one is out of use
      // Behind the last block the next scores are those of an old one, and not used.
      Run own[kRuns];
      gather(turn, visible, own);
      score<0, 3>(stage(next), k, s);
      fetch(block + kStages - 1, now == 0 ? kStages - 1 : now - 1);
      const float shrink = raise(own);
      score<3, 3>(stage(next), k, s);
      weigh(turn, shrink, own);
      score<6, kSteps - 6>(stage(next), k, s);
      if (kF8) split_scales(next, turn ^ 1);
      if (masked) Keys::clear_not_finite(stage(now));
      const bool shrinks = __syncthreads_or(shrink != 1.0f);  // weights are here, scores out of use
      add_values(stage(now), shrinks, [&] { keep_scores(s); });
      now = next;
    }
    device::wait_for_copies<0>();
  }

  // For want of shared memory: a block from its scores to its values while the next one comes.
  __device__ void take_blocks_in_turn() {
    Scores s;
    Fragments k;
    int now = 0;
    for (int block = first_block_; block < end_block_; ++block) {
      const bool masked = (block + 1) * kBlockKeys > prefix_;
      const uint32_t visible = masked ? visible_keys(block) : 0xffffffffu;
      device::wait_for_copies<0>();
      __syncthreads();  // the block is here, the last one is out of use
      fetch(block + 1, now ^ 1);
      score<0, kSteps>(stage(now), k, s);
      keep_scores(s);
      __syncthreads();
      Run own[kRuns];
      gather(0, visible, own);
      const float shrink = raise(own);
      weigh(0, shrink, own);
      if (masked) Keys::clear_not_finite(stage(now));
      add_values(stage(now), __syncthreads_or(shrink != 1.0f), [] {});
      now ^= 1;
    }
  }

  // The page of a block; a block lies in one page.
  __device__ int page_of(int block) const {
    const int key = block * kBlockKeys;
    if (key >= prefix_) return 0;
    return p_.rows
        .block_table[static_cast<int64_t>(request_) * p_.rows.max_blocks + key / kPageTokens];
  }

  // Starts copying a block, if the segment has it; the page of the next one is read meanwhile. Rows
  // behind the last key keep what they hold: nobody sees them.
  __device__ void fetch(int block, int to) {
    if (block < end_block_) {
      const int key = block * kBlockKeys + Keys::copy_row();
      const bool cached = key < prefix_;
      if (key < prefix_ + n_nodes_) {
        const int64_t row = cached ? static_cast<int64_t>(page_) * kPageTokens + key % kPageTokens
                                   : static_cast<int64_t>(first_row_) + (key - prefix_);
        const void* rows = cached ? p_.kv_pages : p_.tail;
        Keys::copy(stage(to), static_cast<const char*>(rows) + row * Keys::kSourceBytes);
        if (kF8 && threadIdx.x % 8 == 0)
          device::copy_async4(device::shared_address(floats(Memory::kKeyScales) + to * kBlockKeys +
                                                     Keys::copy_row()),
                              (cached ? p_.page_scales : p_.tail_scales) + row);
      }
      page_ = page_of(block + 1);
    }
    device::commit_copies();
  }

  // A key's scale is f 2^e. Left for gather() and weigh(): the scale, e, f and 2^-e.
  __device__ void split_scales(int from, int turn) {
    if (warp() > 0) return;
    const int key = lane();
    const float scale = floats(Memory::kKeyScales)[from * kBlockKeys + key];
    const int field = min(max(__float_as_int(scale) >> 23 & 0xff, 67), 253);
    const float inverse = __int_as_float((254 - field) << 23);
    float* factors = key_factors(turn) + key;
    factors[0] = scale;
    factors[kBlockKeys] = static_cast<float>(field - 127);
    factors[2 * kBlockKeys] = scale * inverse;
    factors[3 * kBlockKeys] = inverse;
  }

  // Adds kCount steps of this warp's quarter of the dimensions to S.
  template <int kFirst, int kCount>
  __device__ void score(const char* keys, Fragments& k, Scores& s) {
    const int part = warp() % 4, row = warp() / 4 % kRowWarps * 32;
    const int first_key = kRowWarps == 1 ? warp() / 4 * (kBlockKeys / 2) : 0;
    if constexpr (kFirst == 0) {
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i)
#pragma unroll
        for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
          for (int c = 0; c < 4; ++c) s[i][j][c] = 0.0f;
    }
#pragma unroll
    for (int step = kFirst; step < kFirst + kCount; ++step) {
      uint32_t a[kWarpTiles][4];
#pragma unroll
      for (int i = 0; i < kWarpTiles; ++i) {
        if constexpr (kQueriesInRegisters) {
#pragma unroll
          for (int c = 0; c < 4; ++c) a[i][c] = kept_[i][step][c];
        } else {
          load_queries(row + i * 16, step, a[i]);
        }
      }
      k.load(keys, first_key, part, step);
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
        for (int i = 0; i < kWarpTiles; ++i)
          device::multiply_add<T>(s[i][j], a[i], k.b[j][0], k.b[j][1]);
    }
  }

  __device__ void keep_scores(const Scores& s) {
    const int part = warp() % 4, row = warp() / 4 % kRowWarps * 32;
    const int first_key = kRowWarps == 1 ? warp() / 4 * (kBlockKeys / 2) : 0;
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i)
#pragma unroll
      for (int j = 0; j < kScoreTiles; ++j)
#pragma unroll
        for (int c = 0; c < 2; ++c)
          *reinterpret_cast<float2*>(scores(part, row + i * 16 + lane() / 4 + 8 * c,
                                            first_key + j * 8 + lane() % 4 * 2)) = {
              s[i][j][2 * c], s[i][j][2 * c + 1]};
  }

  __device__ static Run run_at(const float* from) {
    return *reinterpret_cast<const Run*>(from);
  }

  // The keys of a block that this thread's row sees.
  __device__ uint32_t visible_keys(int block) const {
    if (node_ >= n_nodes_) return 0xffffffffu;
    const uint64_t* words =
        p_.ancestors ? p_.ancestors + (static_cast<int64_t>(first_row_) + node_) * p_.n_words
                     : nullptr;
    return device::visible_keys(words, node_, n_nodes_, prefix_, block * kBlockKeys);
  }

  // Softmax of this thread's keys of a block, in three parts: scores, in units of log2; the row's
  // largest one so far; weights and the row's sum. `turn`: of the key factors.
  __device__ void gather(int turn, uint32_t visible, Run (&s)[kRuns]) {
    const int row = softmax_row(), first = threadIdx.x % kRowThreads * kRun;
    const float* factors = key_factors(turn);
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int key = first + kRun * kRowThreads * i;
      s[i] = run_at(scores(0, row, key));
#pragma unroll
      for (int part = 1; part < 4; ++part) {
        const Run more = run_at(scores(part, row, key));
#pragma unroll
        for (int k = 0; k < kRun; ++k) s[i].x[k] += more.x[k];
      }
      Run scale, exponent;
      if constexpr (kF8) {
        scale = run_at(factors + key);
        exponent = run_at(factors + kBlockKeys + key);
      }
#pragma unroll
      for (int k = 0; k < kRun; ++k) {
        s[i].x[k] = kF8 ? s[i].x[k] * (unit_ * scale.x[k]) + exponent.x[k] : s[i].x[k] * unit_;
        if (!(visible >> (key + k) & 1)) s[i].x[k] = -INFINITY;
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
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      largest = fmaxf(largest, __shfl_xor_sync(device::kAllLanes, largest, step));
    const bool rises = largest > max_ + kSlack;
    const float shrink = rises ? device::exp2_estimate(max_ - largest) : 1.0f;
    if (rises) max_ = largest;
    return shrink;
  }

  __device__ void weigh(int turn, float shrink, const Run (&s)[kRuns]) {
    const int row = softmax_row(), first = threadIdx.x % kRowThreads * kRun;
    const float* factors = key_factors(turn);
    const float shift = max_ == -INFINITY ? 0.0f : max_;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      const int key = first + kRun * kRowThreads * i;
      Run weights;
#pragma unroll
      for (int k = 0; k < kRun; ++k) weights.x[k] = device::exp2_estimate(s[i].x[k] - shift);
      Run addends = weights;
      if constexpr (kF8) {
        const Run fraction = run_at(factors + 2 * kBlockKeys + key);
        const Run inverse = run_at(factors + 3 * kBlockKeys + key);
#pragma unroll
        for (int k = 0; k < kRun; ++k) {
          addends.x[k] *= inverse.x[k];
          // A key that is not seen stays out even with a scale of NaN.
          if (weights.x[k] != 0.0f) weights.x[k] *= fraction.x[k];
        }
      }
      sum_[i] = sum_[i] * shrink + ((addends.x[0] + addends.x[1]) + (addends.x[2] + addends.x[3]));
      Packed packed;
#pragma unroll
      for (int k = 0; k < kRun; k += 2)
        packed.x[k / 2] = device::pack<T>(weights.x[k], weights.x[k + 1]);
      if (writes_row())
        *reinterpret_cast<Packed*>(shared_ + Memory::kWeights + weight_offset(row, key / 8) +
                                   key % 8 * 2) = packed;
    }
    if (writes_row() && threadIdx.x % kRowThreads == 0) decay()[row] = shrink;
  }

  // `between` runs while the first products are under way.
  template <typename Between>
  __device__ void add_values(const char* keys, bool shrinks, const Between& between) {
    if (shrinks) {
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
        for (int k = 0; k < 4; ++k) {
          const float shrink = decay()[i * 16 + lane() / 4 + k / 2 * 8];
#pragma unroll
          for (int j = 0; j < 8; ++j) out_[i][j][k] *= shrink;
        }
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
      for (int half = 0; half < 2; ++half) {
        uint32_t b[4][2];
        Keys::load_values(keys, step, warp(), half, b);
#pragma unroll
        for (int j = 0; j < 4; ++j)
#pragma unroll
          for (int i = 0; i < kRowTiles; ++i)
            device::multiply_add<T>(out_[i][4 * half + j], a[i], b[j][0], b[j][1]);
      }
      if (step == 0) between();
    }
  }

  // Writes the tile's outputs, or its partial result.
  __device__ void finish(const Partials& partials) {
    const device::Segment segment = state().segment;
    const bool split = segment.n_splits > 1;
    const int row = softmax_row(), n_valid = n_rows(segment.tile);
    float sum = sum_[0];
    if constexpr (kRuns == 2) sum += sum_[1];
#pragma unroll
    for (int step = kRowThreads / 2; step > 0; step /= 2)
      sum += __shfl_xor_sync(device::kAllLanes, sum, step);
    const int64_t partial_row = static_cast<int64_t>(segment.slot) * kRows;
    __syncthreads();  // decay is out of use
    if (writes_row() && threadIdx.x % kRowThreads == 0 && row < n_valid) {
      decay()[row] = split ? 1.0f : sum == 0.0f ? 0.0f : 1.0f / sum;
      if (split)
        partials.stats[partial_row + row] = {max_, sum};
      else
        p_.lse[first_query(segment.tile) + row] = natural_lse(max_, sum);
    }
    __syncthreads();
    void* to = split ? static_cast<void*>(partials.values) : p_.out;
    const int64_t first_row = split ? partial_row : first_query(segment.tile);
    const bool f32 = split || p_.out_dtype == DType::kF32, bf16 = p_.out_dtype == DType::kBF16;
#pragma unroll
    for (int i = 0; i < kRowTiles; ++i)
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const int r = i * 16 + lane() / 4 + 8 * k;
        if (r >= n_valid) continue;
        const float factor = decay()[r];
        const int64_t index = (first_row + r) * kLatent + warp() * 64;
        // Tiles j and j + 1: columns 2t, 2t + 1 of each, or 4t .. 4t + 3 with every second in each.
#pragma unroll
        for (int j = 0; j < 8; j += 2) {
          const float* low = &out_[i][j][2 * k];
          const float* high = &out_[i][j + 1][2 * k];
          const int column = j * 8 + lane() % 4 * (kF8 ? 4 : 2);
          device::store_pair(to, f32, bf16, index + column, low[0] * factor,
                             (kF8 ? high[0] : low[1]) * factor);
          device::store_pair(to, f32, bf16, index + column + (kF8 ? 2 : 8),
                             (kF8 ? low[1] : high[0]) * factor, high[1] * factor);
        }
      }
    __syncthreads();  // shared memory is free for the next segment
  }

  const VerifyAttentionParams& p_;
  char* const shared_;
  const int request_, first_block_, end_block_;
  const int prefix_, n_nodes_, first_row_;  // of the request
  const int node_;                          // of this thread's row in softmax
  int page_;                                // of the next block to fetch
  float unit_;                              // of a score of this thread's row, in log2
  uint32_t kept_[kWarpTiles][kSteps][4];    // A fragments, when kQueriesInRegisters
  float out_[kRowTiles][8][4];              // C fragments of this warp's 64 columns
  float max_;                               // exponents' reference of this thread's row
  float sum_[kRuns];                        // of its keys
};

}  // namespace kdt::cuda
