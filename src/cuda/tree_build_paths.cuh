// The list of paths that a search by levels makes: what it says of a path, where its costs reach
// the budget, and the best of it in order.
//
// In the list a path has its parent's index, its rank, and the sum of its ranks' classes
// floor(log2(rank + 1)). All paths with ranks no larger come before it, which are at least two to
// the power of that sum: so it is at most log2(budget), and a rank tuple, every rank as its class
// in unary and then its remaining bits, has at most 31 + 2 * 10 bits, which order as tuples do.
#pragma once

#include "cuda/device/lanes.cuh"
#include "cuda/tree_build_tables.cuh"

namespace kdt::cuda {

using device::kAllLanes;

// In a list of paths: parent's index, rank, sum of classes.
constexpr int kParentBits = 14, kRankBits = 10, kMaxPaths = 1 << kParentBits;

__device__ __forceinline__ int rank_of(uint32_t link) {
  return link >> kParentBits & ((1 << kRankBits) - 1);
}
__device__ __forceinline__ int parent_of(uint32_t link) {
  return link & (kMaxPaths - 1);
}
__device__ __forceinline__ int class_of(int rank) {
  return 31 - __clz(rank + 1);
}

// Where the paths counted in s.bins reach the budget; by a full warp.
template <class Shape>
__device__ __forceinline__ Cut find_cut(const LevelShared<Shape>& s, int n_wanted) {
  constexpr int kLaneBins = Shape::kBins / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t counts[kLaneBins], sum = 0;
  const auto* from = reinterpret_cast<const uint4*>(&s.bins[lane * kLaneBins]);
#pragma unroll
  for (int i = 0; i < kLaneBins / 4; ++i) {
    const uint4 four = from[i];
    counts[4 * i] = four.x;
    counts[4 * i + 1] = four.y;
    counts[4 * i + 2] = four.z;
    counts[4 * i + 3] = four.w;
    sum += (four.x + four.y) + (four.z + four.w);
  }
  uint32_t running = sum;
#pragma unroll
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint32_t other = __shfl_up_sync(kAllLanes, running, distance);
    if (lane >= distance) running += other;
  }
  const auto budget = static_cast<uint32_t>(n_wanted);
  const unsigned reached = __ballot_sync(kAllLanes, running >= budget);
  const uint32_t before_lane = running - sum;
  int bin = lane * kLaneBins;  // where the budget is reached, if it is in this lane's bins
  uint32_t n_paths = before_lane + counts[0];
#pragma unroll
  for (int i = 1; i < kLaneBins; ++i) {
    const bool more = n_paths < budget;
    bin += more;
    n_paths += more ? counts[i] : 0;
  }
  const int last_lane = reached ? __ffs(reached) - 1 : 31;
  return {__shfl_sync(kAllLanes, bin, last_lane),
          static_cast<int>(__shfl_sync(kAllLanes, n_paths, last_lane)), before_lane};
}

// Makes of every bin the number of paths in those before; by the warp that found the cut.
template <class Shape>
__device__ __forceinline__ void start_bins(LevelShared<Shape>& s, const Cut& cut) {
  constexpr int kLaneBins = Shape::kBins / 32;
  const int lane = static_cast<int>(threadIdx.x) % 32;
  uint32_t before = cut.before_lane;
#pragma unroll
  for (int i = 0; i < kLaneBins; ++i) {
    uint32_t& bin = s.bins[lane * kLaneBins + i];
    const uint32_t count = bin;
    bin = before;
    before += count;
  }
  if (lane == 0) s.cut = cut;
}

// The rank tuple of a path as bits from the highest on; its depth in the lowest.
__device__ __forceinline__ uint64_t code_of(const uint32_t* links, int path) {
  uint64_t code = 0;
  int depth = 0;
  for (uint32_t link; path > 0; path = parent_of(link), ++depth) {
    link = links[path];
    const uint32_t rank = rank_of(link) + 1;
    const int level = class_of(rank - 1), length = 2 * level + 1;
    const uint32_t rest = rank & ((1u << level) - 1);
    const uint64_t bits = uint64_t{(1u << level) - 1} << (level + 1) | rest;
    code = code >> length | bits << (64 - length);
  }
  return code | depth;
}

// Makes the path at sorted[at] a node if it is among the best. Its links to others are still
// indices into the list; in the list its id takes the place of its link.
template <class Shape>
__device__ __forceinline__ void place(const LevelMemory<Shape>& m, int budget, int shift, int at) {
  LevelShared<Shape>& s = m.s;
  const int path = s.order[at];
  const SortedPath own = s.sorted[at];
  const uint32_t link = m.links[path];
  const auto bin = static_cast<int>(own.cost >> shift);
  const int first = bin > 0 ? s.bins[bin - 1] : 0, last = s.bins[bin];
  int id = first + 1;
  for (int i = first; i < last; ++i) {
    const SortedPath other = s.sorted[i];
    id += other.cost < own.cost || (other.cost == own.cost && other.code < own.code);
  }
  if (id > budget) return;
  s.nodes[id] = {0.0 - static_cast<double>(own.cost) * 0x1p-44,
                 static_cast<int16_t>(parent_of(link)), static_cast<int16_t>(path - 1),
                 static_cast<int16_t>(rank_of(link)), static_cast<int16_t>(own.code & 31)};
  m.links[path] = id;
}

// Orders the paths of the bins up to the cut; s.nodes are the best `budget`.
template <class Shape>
__device__ __forceinline__ void order_paths(const LevelMemory<Shape>& m, int budget, int shift,
                                            const Cut& cut, int end) {
  LevelShared<Shape>& s = m.s;
  const int thread = threadIdx.x, n_nodes = min(cut.n_paths, budget);
  if (thread == 0) s.n_nodes = n_nodes + 1;
  for (int i = 1 + thread; i < end; i += Shape::kThreads) {
    const auto bin = static_cast<int>(m.costs[i] >> shift);
    if (bin > cut.bin) continue;
    const uint32_t at = atomicAdd(&s.bins[bin], 1u);  // in the end, where the next bin begins
    s.sorted[at] = {m.costs[i], code_of(m.links, i)};
    s.order[at] = static_cast<uint16_t>(i);
  }
  __syncthreads();
  for (int at = thread; at < cut.n_paths; at += Shape::kThreads) place(m, budget, shift, at);
  __syncthreads();
  for (int id = 1 + thread; id <= n_nodes; id += Shape::kThreads) {
    TreeNode& node = s.nodes[id];
    node.left = node.rank > 0 ? static_cast<int16_t>(m.links[node.left]) : int16_t{0};
    node.parent = static_cast<int16_t>(m.links[node.parent]);
    s.enter(id, node);
  }
}

}  // namespace kdt::cuda
