// The shared memory of a thread block of the mma implementation of tree-verify attention, and how
// its 8 warps share the work on a block of keys.
#pragma once

#include "cuda/device/shared_address.cuh"
#include "cuda/verify_attention_keys.cuh"

namespace kdt::cuda {

inline constexpr int kQueryBytes = kWidth * 2;  // of a row of queries

// What a thread block remembers while a segment takes all registers.
struct alignas(16) TileState {
  device::Segment segment, next;
  device::Cursor cursor;   // behind `next`
  bool more;               // whether there is a next segment
  int n_nodes, first_row;  // of the segment's request
  uint32_t odd_keys;       // of a block: its keys with values that are not finite; else 0
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
struct TileShape {
  using Memory = TileMemory<kRows, kStages, kF8>;
  using Keys = KeyBlock<T, kF8>;
  static constexpr bool kQueriesInRegisters = kRows <= 32;
  static constexpr int kRowTiles = kRows / 16;
  // A warp's part of S: a quarter of the dimensions and half of the keys, or of 64 rows the rows.
  static constexpr int kRowWarps = kRows > 32 ? kRows / 32 : 1;
  static constexpr int kWarpTiles = kRows / 16 / kRowWarps;  // of 16 rows
  static constexpr int kKeyWarps = 2 / kRowWarps;
  static constexpr int kScoreTiles = kBlockKeys / 8 / kKeyWarps;  // of 8 keys
  static constexpr int kRowThreads = kRows > 32 ? 4 : 8;          // that share a row in softmax
  static constexpr int kRun = 4;  // keys side by side in such a thread
  static constexpr int kRuns = kBlockKeys / kRowThreads / kRun;

  char* shared;

  __device__ static int warp() { return threadIdx.x / 32; }
  __device__ static int lane() { return threadIdx.x % 32; }
  // An address that is used in every block, in a register of its own; where few are left the
  // compiler may compute it again instead.
  __device__ static uint32_t kept_if_room(const void* at) {
    const uint32_t address = device::shared_address(at);
    return kQueriesInRegisters ? device::kept(address) : address;
  }
  __device__ static uint32_t kept(const void* at) {
    return device::kept(device::shared_address(at));
  }

  // The same, with which the compiler branches as one that all lanes take.
  __device__ static bool same_in_warp(bool x) { return __any_sync(device::kAllLanes, x); }

  __device__ static int score_row() { return warp() / 4 % kRowWarps * 32; }
  __device__ static int score_key() { return kRowWarps == 1 ? warp() / 4 * (kBlockKeys / 2) : 0; }
  // Of 16 rows, half of the threads do what the others do, and write nothing.
  __device__ static int softmax_row() { return threadIdx.x / kRowThreads % kRows; }
  __device__ static int softmax_key() { return threadIdx.x % kRowThreads * kRun; }
  __device__ static bool writes_row() { return kRows > 16 || threadIdx.x < kTileThreads / 2; }

  // A block of keys, by where it begins.
  __device__ char* block(int at) const { return shared + Memory::kBlocks + at; }
  __device__ float* floats(int offset) const { return reinterpret_cast<float*>(shared + offset); }
  __device__ float* decay() const { return floats(Memory::kDecay); }
  // Of FP8 keys: of a row of queries, and of the keys of a block.
  __device__ float* query_units() const { return floats(Memory::kQueryUnits); }
  __device__ float* key_factors(int turn) const {
    return floats(Memory::kKeyFactors) + turn * 4 * kBlockKeys;
  }
  __device__ TileState& state() const {
    return *reinterpret_cast<TileState*>(shared + Memory::kState);
  }
  // Rows of a segment.
  __device__ int n_rows(int n_heads) const {
    return min(state().n_nodes * n_heads - state().segment.tile * kRows, kRows);
  }
  // The number of its first row among all.
  __device__ int64_t first_query(int n_heads) const {
    return static_cast<int64_t>(state().first_row) * n_heads + state().segment.tile * kRows;
  }

  __device__ static int query_offset(int row, int chunk) {
    return row * kQueryBytes + (chunk ^ (row % 8)) * 16;
  }
  // Where the partial sums of S are, keys in groups of 8 that rows permute so that neither their
  // writes nor their reads meet in a bank.
  __device__ float* scores(int part, int row, int key) const {
    const int permuted = key ^ ((row & 1) << 4 | (row & 2) << 2);
    return floats(Memory::kScores) + (part * kRows + row) * kBlockKeys + permuted;
  }
  // Where P is, in chunks of 8 keys.
  __device__ char* weights(int row, int key) const {
    return shared + Memory::kWeights + row * kBlockKeys * 2 + (key / 8 ^ (row / 2 % 4)) * 16 +
           key % 8 * 2;
  }
};

}  // namespace kdt::cuda
