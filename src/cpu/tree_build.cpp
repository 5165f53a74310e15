// Best-first tree build with a binary heap per request; requests run in parallel.
#include <algorithm>
#include <limits>

#include "base/rounding.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "ops/arguments.h"

namespace kdt::cpu {
namespace {

// A path that may become the next node: `rank` at `depth` below the node `parent`.
struct Candidate {
  double score;
  int32_t parent;
  int16_t rank;
  int16_t depth;
};

// The heap grows by at most one candidate per pop and starts with one.
struct Scratch {
  Candidate* heap;      // [max_budget + 1]
  int32_t* last_child;  // [max_budget + 1]
  int16_t* ranks;       // [max_budget + 1]
};

size_t scratch_bytes(int32_t max_budget) {
  const size_t n = static_cast<size_t>(max_budget) + 1;
  return round_up(n * (sizeof(Candidate) + sizeof(int32_t) + sizeof(int16_t)), size_t{64});
}

Scratch scratch_of(const TreeBuildParams& p, int32_t request) {
  const size_t n = static_cast<size_t>(p.max_budget) + 1;
  char* base = static_cast<char*>(p.workspace.data) + request * scratch_bytes(p.max_budget);
  Scratch s;
  s.heap = reinterpret_cast<Candidate*>(base);
  s.last_child = reinterpret_cast<int32_t*>(s.heap + n);
  s.ranks = reinterpret_cast<int16_t*>(s.last_child + n);
  return s;
}

// One request's tree while it grows. Outputs are written in place.
class Builder {
 public:
  Builder(const TreeBuildParams& p, int32_t request)
      : p_(p),
        request_(request),
        row_(p.row_offset[request]),
        parents_(p.parents + row_),
        scratch_(scratch_of(p, request)) {}

  void build() {
    const int32_t budget = p_.budget[request_];
    const int32_t limit = p_.max_depth[request_];
    const int32_t n_ranks = p_.max_rank[request_];
    write_row(0, p_.root_token[request_], -1, 0, 0.0);
    int32_t n_nodes = 1;
    if (limit > 0) push({logp(1, 0), 0, 0, 1});
    while (heap_size_ > 0 && n_nodes <= budget) {
      const Candidate best = pop();
      const int32_t node = n_nodes++;
      add_node(node, best);
      // The order of operations is part of the contract: it decides near-ties.
      if (best.rank + 1 < n_ranks) {
        const double sibling =
            (best.score - logp(best.depth, best.rank)) + logp(best.depth, best.rank + 1);
        push({sibling, best.parent, static_cast<int16_t>(best.rank + 1), best.depth});
      }
      if (best.depth < limit)
        push({best.score + logp(best.depth + 1, 0), node, 0, static_cast<int16_t>(best.depth + 1)});
    }
    p_.n_nodes[request_] = n_nodes;
    for (int32_t node = n_nodes; node <= budget; ++node)
      write_row(node, p_.root_token[request_], -1, 0, 0.0);
  }

 private:
  double logp(int depth, int rank) const {
    return p_.logp[(static_cast<size_t>(request_) * p_.depth + depth - 1) * p_.k + rank];
  }

  // Whether `a` pops after `b`. Two candidates are never on one path, so climbing from both ends at
  // a common parent, below which their rank tuples first differ.
  bool pops_later(const Candidate& a, const Candidate& b) const {
    if (a.score != b.score) return a.score < b.score;
    int32_t parent_a = a.parent, parent_b = b.parent;
    int32_t rank_a = a.rank, rank_b = b.rank;
    while (parent_a != parent_b) {
      // Parents precede children, so the larger id is never an ancestor of the smaller.
      int32_t& parent = parent_a > parent_b ? parent_a : parent_b;
      int32_t& rank = parent_a > parent_b ? rank_a : rank_b;
      rank = scratch_.ranks[parent];
      parent = parents_[parent];
    }
    return rank_a > rank_b;
  }

  // NaN and -inf never enter.
  void push(const Candidate& candidate) {
    if (!(candidate.score > -std::numeric_limits<double>::infinity())) return;
    scratch_.heap[heap_size_++] = candidate;
    std::push_heap(scratch_.heap, scratch_.heap + heap_size_,
                   [this](const Candidate& a, const Candidate& b) { return pops_later(a, b); });
  }

  Candidate pop() {
    std::pop_heap(scratch_.heap, scratch_.heap + heap_size_,
                  [this](const Candidate& a, const Candidate& b) { return pops_later(a, b); });
    return scratch_.heap[--heap_size_];
  }

  void add_node(int32_t node, const Candidate& c) {
    const size_t entry = (static_cast<size_t>(request_) * p_.depth + c.depth - 1) * p_.k + c.rank;
    write_row(node, p_.ids[entry], c.parent, c.depth, c.score);
    scratch_.ranks[node] = c.rank;
    if (c.rank == 0)
      p_.first_child[row_ + c.parent] = node;
    else
      p_.next_sibling[row_ + scratch_.last_child[c.parent]] = node;
    scratch_.last_child[c.parent] = node;
  }

  // A node, the root, or padding (a second root, visible to nobody).
  void write_row(int32_t node, int32_t token, int32_t parent, int32_t depth, double score) {
    const size_t row = static_cast<size_t>(row_) + node;
    p_.tokens[row] = token;
    p_.parents[row] = parent;
    p_.depths[row] = depth;
    p_.positions[row] = p_.prefix_len[request_] + depth;
    p_.scores[row] = score;
    p_.first_child[row] = -1;
    p_.next_sibling[row] = -1;
    uint64_t* words = p_.ancestors + row * p_.n_words;
    if (parent < 0) {
      std::fill_n(words, p_.n_words, uint64_t{0});
      words[0] = 1;
    } else {
      std::copy_n(p_.ancestors + (static_cast<size_t>(row_) + parent) * p_.n_words, p_.n_words,
                  words);
      words[node / 64] |= uint64_t{1} << (node % 64);
    }
  }

  const TreeBuildParams& p_;
  const int32_t request_;
  const int32_t row_;
  const int32_t* const parents_;
  const Scratch scratch_;
  size_t heap_size_ = 0;
};

void check_requests(const TreeBuildParams& p) {
  constexpr const char* kOp = "tree_build";
  for (int32_t b = 0; b < p.batch; ++b) {
    require(p.row_offset[b] >= 0, kOp, "row_offset", p.row_offset[b], "0 or more");
    require(p.budget[b] >= 0 && p.budget[b] <= p.max_budget, kOp, "budget", p.budget[b],
            "0..{} (max_budget)", p.max_budget);
    require(p.max_depth[b] >= 0 && p.max_depth[b] <= p.depth, kOp, "max_depth", p.max_depth[b],
            "0..{} (depth)", p.depth);
    require((p.max_rank[b] >= 1 && p.max_rank[b] <= p.k) || p.depth == 0, kOp, "max_rank",
            p.max_rank[b], "1..{} (k)", p.k);
  }
}

}  // namespace

size_t tree_build_workspace(const TreeBuildParams& largest) {
  return static_cast<size_t>(largest.batch) * scratch_bytes(largest.max_budget);
}

void tree_build(const TreeBuildParams& p, Stream) {
  check_requests(p);
  const bool worth_threads = int64_t{p.batch} * p.max_budget > 256;
  parallel_for(p.batch, worth_threads,
               [&](int64_t b) { Builder(p, static_cast<int32_t>(b)).build(); });
}

}  // namespace kdt::cpu
