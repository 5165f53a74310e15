// The `budget` best paths of a tree, found level by level instead of one pop after another.
//
// Scores only fall from a node to its child or right sibling, so the nodes of best-first search are
// the budget best paths, in order of score and, where that is equal, of rank tuple. This works on
// costs (tree_build_tables.cuh), and refuses requests of which they are not exact.
//
//  1. A bound on the cost of the budget-th best path: that of the worst path of some small family
//     of `budget` paths.
//  2. Levels: all children, of all nodes of the level before, that cost at most the bound. Their
//     costs are counted in bins, and where the bins' running sum reaches the budget is a new bound.
//  3. The paths within the bound are dealt to their bins and ranked there by comparing.
#pragma once

#include "cuda/tree_build_paths.cuh"

namespace kdt::cuda {

constexpr int kUnitBits = 26;                          // of a bound: costs in 32 bits
constexpr uint32_t kNoBound = 1u << (52 - kUnitBits);  // 256
constexpr int kGroup = 8;                              // lanes to a parent
constexpr int kFew = 16;                               // paths that do not change a bound

// All threads of the CTA call the members together; members are the same in all unless marked.
template <class Shape>
class LevelSearch {
 public:
  // The steps are staged; bins, n_listed and failed are 0.
  __device__ LevelSearch(const TreeRequest& request, const LevelMemory<Shape>& memory,
                         const StepChecks& checks)
      : r_(request),
        m_(memory),
        s_(memory.s),
        steps_(memory.steps),
        costs_(memory.costs),
        links_(memory.links),
        capacity_(memory.capacity),
        n_ranks_(min(request.n_ranks, request.budget)),
        warp_(static_cast<int>(threadIdx.x) / 32),
        lane_(static_cast<int>(threadIdx.x) % 32),
        checks_(checks) {}

  // Fills s.nodes and sets s.n_nodes; false if this search does not take the request. The caller
  // synchronizes.
  __device__ bool run() {
    find_bound();
    int begin = 1, end = 1 + list_first_level();
    for (int row = 1; row < r_.limit && begin < end; ++row) {
      if (end > r_.budget && (row == 1 || end - begin > kFew)) lower_bound();
      expand(row, begin, end);
      __syncthreads();
      begin = end;
      end += s_.n_listed[row];
      if (end > capacity_) return false;
    }
    if (!checks_.regular) atomicOr(&s_.failed, kIrregular);
    if (!checks_.complete) atomicOr(&s_.failed, kIncomplete);
    if (warp_ == 0) start_bins(s_, find_cut(s_, r_.budget));
    __syncthreads();
    const Cut cut = s_.cut;
    if (s_.failed & kIrregular || cut.n_paths > Shape::kMaxSorted) return false;
    if (s_.failed && cut.n_paths < r_.budget) return false;
    order_paths(m_, r_.budget, shift_, cut, end);
    return true;
  }

 private:
  __device__ uint64_t step(int row, int rank) {
    if (Shape::kMaxBudget <= Shape::kWidth || rank < Shape::kWidth)
      return steps_[row * Shape::kWidth + rank];
    return load_cost(r_, row, rank, checks_);
  }

  // Of a step, rounded up; sums of up to 41 do not overflow.
  __device__ uint32_t units(int row, int rank) {
    if (rank >= n_ranks_) return kNoBound;
    return static_cast<uint32_t>(
        min((step(row, rank) >> kUnitBits) + 1, static_cast<uint64_t>(kNoBound)));
  }

  // Sets bound_ and shift_. Families: ranks below q on m rows from a first one on, q^m >= budget,
  // and rank 0 before; a lane has a first row, a warp a value of m.
  __device__ void find_bound() {
    static_assert(Shape::kWarps >= 10);
    const int log_budget = 32 - __clz(r_.budget - 1);  // rounded up
    const int m = 1 + warp_;
    uint32_t best = kNoBound;
    if (m <= max(log_budget, 1)) {
      const int q = m == 1 ? max(r_.budget - lane_, 1) : 1 << ((log_budget + m - 1) / m);
      const uint32_t own = lane_ < r_.limit ? units(lane_, 0) : 0;
      const uint32_t worst = lane_ < r_.limit ? units(lane_, q - 1) : 0;
      uint32_t chain = own, sum = worst;  // of this row and those before
#pragma unroll
      for (int distance = 1; distance < 32; distance *= 2) {
        const uint32_t other_chain = __shfl_up_sync(kAllLanes, chain, distance);
        const uint32_t other_sum = __shfl_up_sync(kAllLanes, sum, distance);
        if (lane_ >= distance) {
          chain += other_chain;
          sum += other_sum;
        }
      }
      const uint32_t last = __shfl_down_sync(kAllLanes, sum, m - 1);
      if (lane_ + m <= r_.limit) best = (chain - own) + (last - (sum - worst));
      best = __reduce_min_sync(kAllLanes, best);
    }
    if (lane_ == 0) s_.bounds[warp_] = best;
    __syncthreads();
    best = __reduce_min_sync(kAllLanes, s_.bounds[lane_ % Shape::kWarps]);
    bound_ = best < kNoBound ? static_cast<uint64_t>(best) << kUnitBits : kCostLimit;
    shift_ = max(0, 64 - __clzll(static_cast<long long>(bound_)) - (31 - __clz(Shape::kBins)));
  }

  // Lowers bound_ to what the paths listed so far allow.
  __device__ void lower_bound() {
    if (warp_ == 0) {
      const Cut cut = find_cut(s_, r_.budget);
      if (lane_ == 0)
        s_.bound = cut.n_paths < r_.budget
                       ? bound_
                       : min(bound_, (static_cast<uint64_t>(cut.bin + 1) << shift_) - 1);
    }
    __syncthreads();
    bound_ = s_.bound;
  }

  // One of this thread's paths; what does not fit is not listed.
  __device__ void list(int at, uint64_t cost, int parent, int rank, int parent_classes) {
    if (at >= capacity_) return;
    costs_[at] = cost;
    links_[at] = parent | rank << kParentBits |
                 (parent_classes + class_of(rank)) << (kParentBits + kRankBits);
    atomicAdd(&s_.bins[cost >> shift_], 1u);
  }

  // Index 0 is the root's.
  __device__ int list_first_level() {
    const int rank = threadIdx.x;
    if (rank == 0) links_[0] = 0;
    const uint64_t cost = rank < n_ranks_ ? step(0, rank) : kNever;
    const bool enters = cost <= bound_;
    if (!enters && cost < kNever) checks_.complete = false;
    if (enters) list(1 + rank, cost, 0, rank, 0);
    return __syncthreads_count(enters);
  }

  // Lists the children, in `row`, of the paths [begin, end), each path's one after another.
  __device__ void expand(int row, int begin, int end) {
    constexpr int kParents = 32 / kGroup;
    const int max_classes = 31 - __clz(r_.budget), group = lane_ / kGroup, own = lane_ % kGroup;
    const uint64_t own_step = own < n_ranks_ ? step(row, own) : kNever;
    for (int first = begin + warp_ * kParents; first < end; first += Shape::kWarps * kParents) {
      const int parent = first + group;
      const uint64_t cost = parent < end ? costs_[parent] : kNever;
      const int classes = parent < end ? links_[parent] >> (kParentBits + kRankBits) : 0;
      const int n_allowed = cost <= bound_ ? min(n_ranks_, (2 << (max_classes - classes)) - 1) : 0;
      const bool enters = is_within(own_step, own, n_allowed, bound_ - cost);
      const unsigned lanes = __ballot_sync(kAllLanes, enters);
      if (lanes == 0) continue;
      const unsigned lanes_here = lanes >> (group * kGroup) & ((1u << kGroup) - 1);
      const bool more = lanes_here == (1u << kGroup) - 1;
      if (kGroup < n_ranks_ && __any_sync(kAllLanes, more)) {
        const int n = more ? 0 : __popc(lanes_here);
        list_many(row, first, cost, classes, end,
                  n + count_many(row, n_allowed, bound_ - cost, more));
      } else {
        // Of few parents this warp has all.
        const bool alone = end - begin <= kParents;
        if (alone && lane_ == 0) s_.n_listed[row] = __popc(lanes);
        const int before = alone ? 0 : reserve(row, __popc(lanes));
        const int at = end + before + __popc(lanes & ((1u << lane_) - 1));
        if (enters) list(at, cost + own_step, parent, own, classes);
      }
    }
  }

  __device__ bool is_within(uint64_t cost, int rank, int n_allowed, uint64_t room) {
    const bool within = rank < n_allowed && cost <= room;
    if (rank < n_allowed && !within && cost < kNever) checks_.complete = false;
    return within;
  }

  // How many steps of a row cost at most `room`, by the groups of lanes for which kGroup do; 0 for
  // others.
  __device__ int count_many(int row, int n_allowed, uint64_t room, bool wanted) {
    const int group = lane_ / kGroup, own = lane_ % kGroup;
    int n = wanted ? kGroup : 0, stride = kGroup;
    while (stride * kGroup < n_ranks_) stride *= kGroup;
    for (; stride > 0; stride /= kGroup) {
      const int rank = n + (own + 1) * stride - 1;
      const bool within =
          wanted && rank < n_allowed && is_within(step(row, rank), rank, n_allowed, room);
      const unsigned lanes = __ballot_sync(kAllLanes, within);
      n += __popc(lanes >> (group * kGroup) & ((1u << kGroup) - 1)) * stride;
    }
    return n;
  }

  // Lists n children of each group's parent, the first of them `first`, by all lanes alike.
  __device__ void list_many(int row, int first, uint64_t cost, int classes, int end, int n) {
    int begins[32 / kGroup], total = 0;  // of the groups' children
#pragma unroll
    for (int group = 0; group < 32 / kGroup; ++group) {
      begins[group] = total;
      total += __shfl_sync(kAllLanes, n, group * kGroup);
    }
    const int at = end + reserve(row, total);
    for (int i = lane_; i - lane_ < total; i += 32) {
      int group = 0, begin = 0;
#pragma unroll
      for (int other = 1; other < 32 / kGroup; ++other) {
        if (i < begins[other]) continue;
        group = other;
        begin = begins[other];
      }
      const uint64_t parent_cost = __shfl_sync(kAllLanes, cost, group * kGroup);
      const int parent_classes = __shfl_sync(kAllLanes, classes, group * kGroup);
      if (i < total)
        list(at + i, parent_cost + step(row, i - begin), first + group, i - begin, parent_classes);
    }
  }

  // Places of a level, by a full warp.
  __device__ int reserve(int row, int n) {
    const int at = lane_ == 0 ? atomicAdd(&s_.n_listed[row], n) : 0;
    return __shfl_sync(kAllLanes, at, 0);
  }

  const TreeRequest& r_;
  const LevelMemory<Shape>& m_;
  LevelShared<Shape>& s_;
  const uint64_t* const steps_;
  uint64_t* const costs_;
  uint32_t* const links_;
  const int capacity_, n_ranks_;
  const int warp_, lane_;
  StepChecks checks_;  // this thread's
  uint64_t bound_ = 0;
  int shift_ = 0;
};

}  // namespace kdt::cuda
