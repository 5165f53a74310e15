// One CTA per request. Its first warp pops nodes; then all warps write the rows.
//
// The candidates of a best-first search over sorted lists are, at any time, one per node: the next
// child that the node has not given away yet. So the frontier is an array indexed by parent, and a
// pop is an argmax over it. The array is a grid: slot p lies in row p / 32 of column p % 32, lane c
// keeps the largest key of column c, and a pop costs a maximum over the other columns and one over
// the column that changed, both by warp reductions, whatever the budget (up to 1024 parents).
//
// Keys are the upper halves of order-preserving 64-bit keys of the scores; equal halves are
// resolved with the full scores, equal scores with the rank tuples. A tuple is kept as a bit string
// that compares like the tuple: rank r becomes the code of r + 1 with its length in unary in front.
#include <algorithm>

#include "cuda/device/dependency.cuh"
#include "cuda/device/order.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kColumns = 32;
constexpr int kColumnStride =
    33;  // words between rows of the key grid, to keep columns off one bank
constexpr int kStagedRanks = 128;  // log-probabilities of a depth in shared memory
constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr int kPathBits = 64;
constexpr uint64_t kLongPath = ~uint64_t{0};

// What the search knows of a node and of its next child. Entries are written by one lane and read
// by the warp, with __syncwarp between.
struct Tables {
  double2* next;          // [n] scores that follow the candidate: its right sibling's, its child's
  double* score;          // [n] of the candidate
  double* node_score;     // [n]
  uint64_t* path;         // [n] the node's rank tuple as bits, first rank highest
  uint32_t* key;          // [rows, 33] the grid of candidates' keys, 0 = none
  int16_t* rank;          // [n] of the candidate
  int16_t* last_child;    // [n]
  int16_t* parent;        // [n]
  int16_t* node_rank;     // [n]
  int16_t* first_child;   // [n]
  int16_t* next_sibling;  // [n]
  uint8_t* depth;         // [n]
  uint8_t* path_bits;     // [n] length of the path, saturated above kPathBits
  float* logp;            // [depth, staged]
};

__host__ __device__ constexpr size_t padded(size_t bytes) {
  return (bytes + 15) / 16 * 16;
}

struct TableSizes {
  int nodes, rows, depth, staged;  // of the tables: budget + 1, rows of the key grid
};

// Lays the tables out from `base`; returns the bytes they take.
__host__ __device__ inline size_t lay_out(const TableSizes& n, char* base, Tables* t) {
  size_t used = 0;
  const auto take = [&](auto** array, size_t count) {
    *array = reinterpret_cast<std::remove_reference_t<decltype(*array)>>(base + used);
    used += padded(count * sizeof(**array));
  };
  const size_t nodes = n.nodes;
  take(&t->next, nodes);
  take(&t->score, nodes);
  take(&t->node_score, nodes);
  take(&t->path, nodes);
  take(&t->key, static_cast<size_t>(n.rows) * kColumnStride);
  for (int16_t** array :
       {&t->rank, &t->last_child, &t->parent, &t->node_rank, &t->first_child, &t->next_sibling})
    take(array, nodes);
  take(&t->depth, nodes);
  take(&t->path_bits, nodes);
  take(&t->logp, static_cast<size_t>(n.depth) * n.staged);
  return used;
}

TableSizes sizes_of(const TreeBuildParams& p) {
  // The last node popped needs no candidates, so slots are the nodes below the budget.
  const int rows = (p.max_budget + kColumns - 1) / kColumns;
  return {p.max_budget + 1, std::max(rows, 1), p.depth, std::min(p.k, kStagedRanks)};
}

// The upper half of a score's key; 0 for what never enters, NaN and -inf.
__device__ __forceinline__ uint32_t upper_key(double score) {
  if (!(score > -INFINITY)) return 0;
  return static_cast<uint32_t>(device::ascending_key(score) >> 32);
}

__device__ __forceinline__ int code_bits(int rank) {
  return 2 * (31 - __clz(rank + 1)) + 1;
}

// n ones, a zero, then the n bits of rank + 1 below its leading one: prefix-free and ascending.
__device__ __forceinline__ uint64_t rank_code(int rank) {
  const int n = 31 - __clz(rank + 1);
  const uint64_t ones = (uint64_t{1} << n) - 1;
  return ones << (n + 1) | (static_cast<uint64_t>(rank + 1) & ones);
}

// The search of one request, run by one full warp. Members are the same in all lanes unless marked.
class Search {
 public:
  __device__ Search(const TreeBuildParams& p, const Tables& t, const TableSizes& sizes, int request)
      : t_(t),
        logp_(p.logp + static_cast<int64_t>(request) * p.depth * p.k),
        k_(p.k),
        staged_(sizes.staged),
        rows_(sizes.rows),
        limit_(p.max_depth[request]),
        n_ranks_(p.max_rank[request]),
        lane_(static_cast<int>(threadIdx.x) % 32) {}

  // Returns the number of nodes, the root included.
  __device__ int run(int budget) {
    uint32_t best = start();
    int n_nodes = 1;
    for (; best != 0 && n_nodes <= budget; ++n_nodes) best = pop(winner(best), n_nodes);
    return n_nodes;
  }

 private:
  __device__ double logp(int depth, int rank) const {
    return rank < staged_ ? t_.logp[(depth - 1) * staged_ + rank]
                          : logp_[static_cast<int64_t>(depth - 1) * k_ + rank];
  }

  // Returns the largest key of all, as pop does.
  __device__ uint32_t start() {
    const double score = limit_ > 0 ? logp(1, 0) : -INFINITY;
    const uint32_t key = upper_key(score);
    if (lane_ == 0) {
      t_.path[0] = 0;
      t_.path_bits[0] = 0;
      t_.depth[0] = 0;
      t_.parent[0] = -1;
      t_.node_score[0] = 0.0;
      offer(0, 1, 0, score);
      t_.key[0] = column_best_ = key;
    }
    __syncwarp();
    return key;
  }

  // Makes (depth, rank) the candidate of `parent`: a lane's work, off the path from pop to pop.
  __device__ void offer(int parent, int depth, int rank, double score) {
    t_.score[parent] = score;
    t_.rank[parent] = static_cast<int16_t>(rank);
    double2 next = {-INFINITY, -INFINITY};
    if (score > -INFINITY) {
      // The order of operations is part of the contract: it decides near-ties.
      if (rank + 1 < n_ranks_) next.x = (score - logp(depth, rank)) + logp(depth, rank + 1);
      if (depth < limit_) next.y = score + logp(depth + 1, 0);
    }
    t_.next[parent] = next;
  }

  // The slot whose candidate pops, among those with the upper key `best`.
  __device__ int winner(uint32_t best) {
    const unsigned columns = __ballot_sync(kAllLanes, column_best_ == best);
    const unsigned doubled = __ballot_sync(kAllLanes, column_best_ == best && tied_);
    const int first = __ffs(columns) - 1;
    const int slot = __shfl_sync(kAllLanes, best_slot_, first);
    const unsigned others = columns & (columns - 1);
    if ((others | doubled) == 0) return slot;
    if (doubled == 0 && (others & (others - 1)) == 0) {
      const int other = __shfl_sync(kAllLanes, best_slot_, __ffs(others) - 1);
      return pops_first(slot, other) ? slot : other;
    }
    return winner_of_many(columns, best);
  }

  // The rank tuple of a slot's candidate; kLongPath where it does not fit (every code has a zero).
  __device__ uint64_t candidate_path(int slot) const {
    const int rank = t_.rank[slot], shift = kPathBits - t_.path_bits[slot] - code_bits(rank);
    return shift < 0 ? kLongPath : t_.path[slot] | rank_code(rank) << shift;
  }

  __device__ bool pops_first(int a, int b) const {
    const double score_a = t_.score[a], score_b = t_.score[b];
    if (score_a != score_b) return score_a > score_b;
    const uint64_t path_a = candidate_path(a), path_b = candidate_path(b);
    return path_a == kLongPath || path_b == kLongPath ? precedes(a, b) : path_a < path_b;
  }

  // Compares rank tuples of any length: two candidates are never on one path, so climbing from both
  // ends at a common parent, below which the tuples first differ.
  __device__ bool precedes(int a, int b) const {
    int rank_a = t_.rank[a], rank_b = t_.rank[b];
    while (a != b) {  // the larger id is never an ancestor of the smaller
      int& node = a > b ? a : b;
      int& rank = a > b ? rank_a : rank_b;
      rank = t_.node_rank[node];
      node = t_.parent[node];
    }
    return rank_a < rank_b;
  }

  // Each lane looks through its row of the columns with ties; then the lanes compare in a tree.
  __device__ int winner_of_many(unsigned columns, uint32_t best) const {
    int slot = -1;
    for (; columns != 0; columns &= columns - 1) {
      const int column = __ffs(columns) - 1;
      if (lane_ >= rows_ || t_.key[lane_ * kColumnStride + column] != best) continue;
      const int other = lane_ * kColumns + column;
      if (slot < 0 || pops_first(other, slot)) slot = other;
    }
    for (int step = 16; step > 0; step /= 2) {
      const int other = __shfl_xor_sync(kAllLanes, slot, step);
      if (other >= 0 && other != slot && (slot < 0 || pops_first(other, slot))) slot = other;
    }
    return slot;
  }

  // Makes the candidate of `slot` the node `node`; returns the largest key that is left, 0 if none.
  __device__ uint32_t pop(int slot, int node) {
    const int rank = t_.rank[slot], depth = t_.depth[slot] + 1;
    const int column = slot % kColumns, node_row = node / kColumns;
    const double2 next = t_.next[slot];
    uint32_t key = lane_ < rows_ ? t_.key[lane_ * kColumnStride + column] : 0;
    if (lane_ == 2) record(slot, node, rank, depth);
    __syncwarp();  // the candidate is read; its slot may change
    const uint32_t sibling_key = upper_key(next.x), child_key = upper_key(next.y);
    if (lane_ == slot / kColumns) key = sibling_key;
    if (lane_ == node_row && node % kColumns == column) key = child_key;
    if (lane_ == node % kColumns) raise_column(node, child_key);
    const uint32_t best_here = __reduce_max_sync(kAllLanes, key);
    const uint32_t best_elsewhere =
        __reduce_max_sync(kAllLanes, lane_ == column ? 0 : column_best_);
    const unsigned rows = __ballot_sync(kAllLanes, key == best_here);
    if (lane_ == column) {
      column_best_ = best_here;
      best_slot_ = (__ffs(rows) - 1) * kColumns + column;
      tied_ = (rows & (rows - 1)) != 0;
    }
    if (lane_ == 0) offer(slot, depth, rank + 1, next.x);
    if (lane_ == 1) offer(node, depth + 1, 0, next.y);
    if (lane_ == 2) t_.key[slot / kColumns * kColumnStride + column] = sibling_key;
    if (lane_ == 3 && node_row < rows_)
      t_.key[node_row * kColumnStride + node % kColumns] = child_key;
    __syncwarp();
    return max(best_here, best_elsewhere);
  }

  // A new slot can only raise its column. (The popped slot's column is searched again anyway.)
  __device__ void raise_column(int slot, uint32_t key) {
    if (key < column_best_) return;
    tied_ = key == column_best_;
    if (tied_) return;
    column_best_ = key;
    best_slot_ = slot;
  }

  __device__ void record(int slot, int node, int rank, int depth) {
    t_.node_score[node] = t_.score[slot];
    t_.parent[node] = static_cast<int16_t>(slot);
    t_.node_rank[node] = static_cast<int16_t>(rank);
    t_.depth[node] = static_cast<uint8_t>(depth);
    t_.path[node] = candidate_path(slot);
    t_.path_bits[node] =
        static_cast<uint8_t>(min(t_.path_bits[slot] + code_bits(rank), kPathBits + 1));
    if (rank == 0)
      t_.first_child[slot] = static_cast<int16_t>(node);
    else
      t_.next_sibling[t_.last_child[slot]] = static_cast<int16_t>(node);
    t_.last_child[slot] = static_cast<int16_t>(node);
  }

  const Tables& t_;
  const float* const logp_;
  const int k_, staged_, rows_, limit_, n_ranks_, lane_;
  uint32_t column_best_ = 0;  // of column lane_
  int best_slot_ = 0;         // where it is
  bool tied_ = false;         // more than one slot of the column has it
};

// Row `node` of the outputs; a node at or past n_nodes is padding.
__device__ void write_row(const TreeBuildParams& p, const Tables& t, int request, int node,
                          int n_nodes) {
  const int64_t row = int64_t{p.row_offset[request]} + node;
  const bool is_node = node > 0 && node < n_nodes;
  const int depth = is_node ? t.depth[node] : 0;
  const int64_t entry =
      (int64_t{request} * p.depth + depth - 1) * p.k + (is_node ? t.node_rank[node] : 0);
  p.tokens[row] = is_node ? p.ids[entry] : p.root_token[request];
  p.parents[row] = is_node ? t.parent[node] : -1;
  p.depths[row] = depth;
  p.positions[row] = p.prefix_len[request] + depth;
  p.scores[row] = is_node ? t.node_score[node] : 0.0;
  p.first_child[row] = node < n_nodes ? t.first_child[node] : -1;
  p.next_sibling[row] = node < n_nodes ? t.next_sibling[node] : -1;
  // Ancestors have descending ids on the way up, so words fill from the last to the first.
  uint64_t* words = p.ancestors + row * p.n_words;
  int ancestor = is_node ? node : 0;
  for (int word = p.n_words - 1; word >= 0; --word) {
    uint64_t bits = 0;
    for (; ancestor >= 0 && ancestor / 64 == word; ancestor = t.parent[ancestor])
      bits |= uint64_t{1} << (ancestor % 64);
    words[word] = bits;
  }
}

__global__ void __launch_bounds__(kThreads)
    tree_build_kernel(const TreeBuildParams p, const TableSizes sizes) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) char shared[];
  __shared__ int n_nodes;
  Tables t;
  lay_out(sizes, shared, &t);
  const int request = blockIdx.x, thread = threadIdx.x;
  const int budget = p.budget[request];
  const float* logp = p.logp + static_cast<int64_t>(request) * p.depth * p.k;
  for (int i = thread; i < sizes.depth * sizes.staged; i += kThreads)
    t.logp[i] = logp[static_cast<int64_t>(i / sizes.staged) * p.k + i % sizes.staged];
  for (int i = thread; i < sizes.nodes; i += kThreads) t.first_child[i] = t.next_sibling[i] = -1;
  for (int i = thread; i < sizes.rows * kColumnStride; i += kThreads) t.key[i] = 0;
  __syncthreads();
  if (thread < 32) {
    const int n = Search(p, t, sizes, request).run(budget);
    if (thread == 0) p.n_nodes[request] = n_nodes = n;
  }
  __syncthreads();
  for (int node = thread; node <= budget; node += kThreads) write_row(p, t, request, node, n_nodes);
}

}  // namespace

size_t tree_build_workspace(const TreeBuildParams&) {
  return 0;
}

void tree_build(const TreeBuildParams& p, Stream stream) {
  if (p.batch == 0) return;
  const TableSizes sizes = sizes_of(p);
  Tables unused;
  launch(tree_build_kernel,
         {.grid = dim3(p.batch),
          .block = dim3(kThreads),
          .shared_bytes = lay_out(sizes, nullptr, &unused)},
         stream, p, sizes);
}

}  // namespace kdt::cuda
