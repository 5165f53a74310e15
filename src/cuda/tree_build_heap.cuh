// Best-first search with a binary heap by one thread: exact for any input, and slow. For requests
// that the search by levels (tree_build_levels.cuh) does not take.
#pragma once

#include <cstdint>

#include "ops/tree_build.h"

namespace kdt::cuda {

// A node, or a path that may become one.
struct alignas(16) TreeNode {
  double score;
  int16_t parent;  // node ids
  int16_t left;    // its left sibling, 0 if none
  int16_t rank, depth;
};

class HeapSearch {
 public:
  // logp: the request's. heap[budget + 1] is scratch; nodes[budget + 1] the result, from id 1 on.
  __device__ HeapSearch(const float* logp, int k, int limit, int n_ranks, TreeNode* heap,
                        TreeNode* nodes)
      : logp_(logp), k_(k), limit_(limit), n_ranks_(n_ranks), heap_(heap), nodes_(nodes) {}

  // Returns the number of nodes, the root included.
  __device__ int run(int budget) {
    int node = 1;
    if (limit_ > 0) push({at(0, 0), 0, 0, 0, 1});
    for (; node <= budget && size_ > 0; ++node) {
      const TreeNode best = pop();
      nodes_[node] = best;
      const auto id = static_cast<int16_t>(node);
      // The order of operations is part of the contract: it decides near-ties.
      if (best.rank + 1 < n_ranks_)
        push({(best.score - at(best.depth - 1, best.rank)) + at(best.depth - 1, best.rank + 1),
              best.parent, id, static_cast<int16_t>(best.rank + 1), best.depth});
      if (best.depth < limit_)
        push({best.score + at(best.depth, 0), id, 0, 0, static_cast<int16_t>(best.depth + 1)});
    }
    return node;
  }

 private:
  __device__ double at(int row, int rank) const {
    return double{logp_[static_cast<int64_t>(row) * k_ + rank]} + 0.0;
  }

  // Whether `a` pops before `b`. Two candidates are never on one path, so climbing from both ends
  // at a common parent, below which their rank tuples first differ.
  __device__ bool before(const TreeNode& a, const TreeNode& b) const {
    if (a.score != b.score) return a.score > b.score;
    int parent_a = a.parent, parent_b = b.parent, rank_a = a.rank, rank_b = b.rank;
    while (parent_a != parent_b) {
      int& parent = parent_a > parent_b ? parent_a : parent_b;  // never an ancestor of the other
      int& rank = parent_a > parent_b ? rank_a : rank_b;
      rank = nodes_[parent].rank;
      parent = nodes_[parent].parent;
    }
    return rank_a < rank_b;
  }

  // NaN and -inf never enter.
  __device__ void push(const TreeNode& candidate) {
    if (!(candidate.score > -INFINITY)) return;
    int at = size_++;
    for (; at > 0 && before(candidate, heap_[(at - 1) / 2]); at = (at - 1) / 2)
      heap_[at] = heap_[(at - 1) / 2];
    heap_[at] = candidate;
  }

  __device__ TreeNode pop() {
    const TreeNode best = heap_[0], last = heap_[--size_];
    int at = 0;
    for (int child = 1; child < size_; child = 2 * at + 1) {
      if (child + 1 < size_ && before(heap_[child + 1], heap_[child])) ++child;
      if (!before(heap_[child], last)) break;
      heap_[at] = heap_[child];
      at = child;
    }
    heap_[at] = last;
    return best;
  }

  const float* const logp_;
  const int k_, limit_, n_ranks_;
  TreeNode* const heap_;
  TreeNode* const nodes_;
  int size_ = 0;
};

}  // namespace kdt::cuda
