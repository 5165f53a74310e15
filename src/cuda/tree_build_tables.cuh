// What the search by levels reads and keeps in shared memory, and the costs of steps.
//
// A step is a choice of a rank at a depth; its *cost* is minus its log-probability in fixed point.
// Sums of costs are exact in any order, and so are the contract's float64 operations on scores,
// which have the same 53 bits.
#pragma once

#include "cuda/tree_build_heap.cuh"

namespace kdt::cuda {

constexpr int kCostBits = 44;                             // behind the point
constexpr uint64_t kCostLimit = (uint64_t{1} << 53) - 1;  // 512
constexpr uint64_t kNever = uint64_t{1} << 57;            // 31 of them are still no overflow

// A request's arguments.
struct TreeRequest {
  const float* logp;  // [depth, k]
  int k, limit, n_ranks, budget;
};

// kMaxBudget: of the requests it takes.
template <int kMaxBudget_, int kThreads_, int kWidth_, int kBins_, int kMaxSorted_>
struct LevelShape {
  static constexpr int kMaxBudget = kMaxBudget_, kThreads = kThreads_, kWarps = kThreads / 32;
  static constexpr int kWidth = kWidth_;  // ranks in shared memory
  static constexpr int kBins = kBins_;
  static constexpr int kMaxSorted = kMaxSorted_;  // paths within the last bound
  static_assert(kThreads >= kMaxBudget && kBins % 128 == 0);
};

// The first bin of paths up to which there are `budget`, or the last bin.
struct Cut {
  int bin, n_paths;
  uint32_t before_lane;  // paths before the bins of this lane
};

struct alignas(16) SortedPath {
  uint64_t cost, code;
};

// Why a search by levels may have failed.
constexpr unsigned kIrregular = 1, kIncomplete = 2;

template <class Shape>
struct LevelShared {
  alignas(16) uint32_t bins[Shape::kBins];
  SortedPath sorted[Shape::kMaxSorted];
  uint16_t order[Shape::kMaxSorted];  // their places in the list of paths
  TreeNode nodes[Shape::kMaxBudget + 1];
  int16_t first_child[Shape::kMaxBudget + 1], next_sibling[Shape::kMaxBudget + 1];
  int n_listed[kMaxDepth + 1];  // by level
  uint32_t bounds[Shape::kWarps];
  uint64_t bound;
  Cut cut;
  unsigned failed;
  int n_nodes;

  // Makes a node known to its parent or left sibling.
  __device__ void enter(int id, const TreeNode& node) {
    (node.left ? next_sibling[node.left] : first_child[node.parent]) = static_cast<int16_t>(id);
  }
};

// All the shared memory of a CTA: fixed tables, those of the request's ranks below kWidth,
// [depth, kWidth], and the list of paths.
template <class Shape>
struct LevelMemory {
  static constexpr size_t kStepBytes = sizeof(uint64_t) + sizeof(int32_t);
  static constexpr size_t kPathBytes = sizeof(uint64_t) + sizeof(uint32_t);

  LevelShared<Shape>& s;
  uint64_t* steps;  // costs
  int32_t* ids;
  uint64_t* costs;  // [capacity]
  uint32_t* links;  // [capacity] behind costs
  int capacity;     // a multiple of four

  // Without the list.
  __host__ __device__ static size_t fixed_bytes(int depth) {
    return sizeof(LevelShared<Shape>) + depth * Shape::kWidth * kStepBytes;
  }

  __device__ LevelMemory(char* bytes, int depth, int capacity_)
      : s(*reinterpret_cast<LevelShared<Shape>*>(bytes)),
        steps(reinterpret_cast<uint64_t*>(bytes + sizeof(LevelShared<Shape>))),
        ids(reinterpret_cast<int32_t*>(steps + depth * Shape::kWidth)),
        costs(reinterpret_cast<uint64_t*>(bytes + fixed_bytes(depth))),
        links(reinterpret_cast<uint32_t*>(costs + capacity_)),
        capacity(capacity_) {}
};

// What steps turned out to be. `regular` turns false where a step is no multiple of the fixed point
// or steps do not ascend, `complete` where a finite one is too expensive.
struct StepChecks {
  bool regular = true, complete = true;
};

__device__ __forceinline__ uint64_t cost_of(float logp, StepChecks& checks) {
  const uint32_t bits = __float_as_uint(logp), exponent = bits >> 23 & 0xff;
  if (!(logp > -INFINITY)) return kNever;
  if (logp == 0.0f) return 0;
  if (logp > 0.0f) checks.regular = false;
  const int shift = static_cast<int>(exponent) - 150 + kCostBits;
  const uint64_t mantissa = (bits & 0x7fffffu) | 0x800000u;
  if (shift > 29) {
    checks.complete = false;
    return kNever;
  }
  if (shift >= 0) return mantissa << shift;
  const int lost = min(-shift, 24);
  if (exponent == 0 || (mantissa & ((uint64_t{1} << lost) - 1)) != 0) checks.regular = false;
  return mantissa >> lost;
}

// Of a step of rank 1 or more, behind that of the rank before.
__device__ __forceinline__ void check_order(float logp, float left, StepChecks& checks) {
  if (logp > left || (logp == logp && left != left)) checks.regular = false;  // not descending
}

// The cost of a step, `rank` below the number of ranks.
__device__ __forceinline__ uint64_t load_cost(const TreeRequest& r, int row, int rank,
                                              StepChecks& checks) {
  const float* at = r.logp + static_cast<int64_t>(row) * r.k + rank;
  const float logp = *at;
  if (rank > 0) check_order(logp, at[-1], checks);
  return cost_of(logp, checks);
}

}  // namespace kdt::cuda
