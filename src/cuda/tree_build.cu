// One CTA per request: all threads stage the costs of steps, search, and write the rows. The search
// by levels takes what log-probabilities draft_topk gives; the heap takes the rest.
#include <algorithm>

#include "cuda/device/dependency.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"
#include "cuda/tree_build_levels.cuh"

namespace kdt::cuda {
namespace {

// By the largest budget.
using SmallShape = LevelShape<64, 512, 64, 256, 256>;
using MediumShape = LevelShape<256, 512, 64, 512, 512>;
using LargeShape = LevelShape<1024, 1024, 64, 512, 2048>;

// Fills the tables that the search reads, by all threads. The log-probabilities are on their way
// before it is known which of them the request wants.
template <class Shape>
__device__ StepChecks stage(const TreeBuildParams& p, int request, const LevelMemory<Shape>& m,
                            TreeRequest& r) {
  constexpr int kWidth = Shape::kWidth, kInFlight = 2;
  const int thread = threadIdx.x, n = p.depth * kWidth;
  const int64_t first_entry = int64_t{request} * p.depth * p.k;
  r = {p.logp + first_entry, p.k, p.max_depth[request], p.max_rank[request], p.budget[request]};
  StepChecks checks;
  for (int first = thread; first < n; first += kInFlight * Shape::kThreads) {
    float logp[kInFlight], left[kInFlight];
    int32_t ids[kInFlight];
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = first + j * Shape::kThreads, row = i / kWidth, rank = i % kWidth;
      const int64_t entry = first_entry + static_cast<int64_t>(row) * p.k + rank;
      const bool there = i < n && rank < p.k;
      logp[j] = there ? p.logp[entry] : -INFINITY;
      left[j] = there && rank > 0 ? p.logp[entry - 1] : INFINITY;
      ids[j] = there ? p.ids[entry] : 0;
    }
#pragma unroll
    for (int j = 0; j < kInFlight; ++j) {
      const int i = first + j * Shape::kThreads;
      if (i >= n || i / kWidth >= r.limit || i % kWidth >= min(r.n_ranks, r.budget)) continue;
      check_order(logp[j], left[j], checks);
      m.steps[i] = cost_of(logp[j], checks);
      m.ids[i] = ids[j];
    }
  }
  for (int i = thread; i <= r.budget; i += Shape::kThreads)
    m.s.first_child[i] = m.s.next_sibling[i] = -1;
  return checks;
}

struct Root {
  int row, token, position;
};

// Row `id` of the outputs but for the ancestors; an id at or past n_nodes is padding.
template <class Shape>
__device__ void write_row(const TreeBuildParams& p, const LevelMemory<Shape>& m, int request,
                          const Root& root, int id) {
  const int64_t row = int64_t{root.row} + id;
  const bool is_node = id > 0 && id < m.s.n_nodes;
  const TreeNode n = is_node ? m.s.nodes[id] : TreeNode{0.0, -1, 0, 0, 0};
  int token = root.token;
  if (is_node)
    token = n.rank < Shape::kWidth
                ? m.ids[(n.depth - 1) * Shape::kWidth + n.rank]
                : p.ids[(int64_t{request} * p.depth + n.depth - 1) * p.k + n.rank];
  p.tokens[row] = token;
  p.parents[row] = n.parent;
  p.depths[row] = n.depth;
  p.positions[row] = root.position + n.depth;
  p.scores[row] = n.score;
  p.first_child[row] = m.s.first_child[id];
  p.next_sibling[row] = m.s.next_sibling[id];
}

// The n_words of node `id`'s ancestors. They have descending ids on the way up, so words fill from
// the last to the first.
template <class Shape>
__device__ void write_ancestors(const LevelShared<Shape>& s, int id, int n_words, uint64_t* words) {
  int ancestor = id < s.n_nodes ? id : 0;
  for (int word = n_words - 1; word >= 0; --word) {
    uint64_t bits = 0;
    for (; ancestor > 0 && ancestor / 64 == word; ancestor = s.nodes[ancestor].parent)
      bits |= uint64_t{1} << (ancestor % 64);
    words[word] = bits | (word == 0);
  }
}

template <class Shape>
__device__ void search(const TreeRequest& r, const LevelMemory<Shape>& m,
                       const StepChecks& checks) {
  if (r.budget == 0 || r.limit <= 0) {
    if (threadIdx.x == 0) m.s.n_nodes = 1;
  } else if (!LevelSearch<Shape>(r, m, checks).run() && threadIdx.x == 0) {
    auto* heap = reinterpret_cast<TreeNode*>(m.costs);
    m.s.n_nodes = HeapSearch(r.logp, r.k, r.limit, r.n_ranks, heap, m.s.nodes).run(r.budget);
    for (int id = 1; id < m.s.n_nodes; ++id) m.s.enter(id, m.s.nodes[id]);
  }
  __syncthreads();
}

template <class Shape>
__global__ void __launch_bounds__(Shape::kThreads)
    tree_build_kernel(const TreeBuildParams p, int capacity) {
  extern __shared__ __align__(16) char shared[];
  const LevelMemory<Shape> m(shared, p.depth, capacity);
  for (int i = threadIdx.x; i < Shape::kBins; i += Shape::kThreads) m.s.bins[i] = 0;
  if (threadIdx.x <= kMaxDepth) m.s.n_listed[threadIdx.x] = 0;
  if (threadIdx.x == 0) m.s.failed = 0;
  device::wait_for_previous();
  device::let_next_start();
  const int request = blockIdx.x, thread = threadIdx.x;
  const Root root = {p.row_offset[request], p.root_token[request], p.prefix_len[request]};
  TreeRequest r;
  const StepChecks checks = stage(p, request, m, r);
  __syncthreads();
  search(r, m, checks);
  if (thread == 0) p.n_nodes[request] = m.s.n_nodes;
  for (int id = thread; id <= r.budget; id += Shape::kThreads) write_row(p, m, request, root, id);
  // Rows of few words go to memory at once; many would go in as many scattered stores.
  uint64_t* ancestors = p.ancestors + int64_t{root.row} * p.n_words;
  const int n_words = (r.budget + 1) * p.n_words;
  const bool staged = p.n_words > 2 && n_words * sizeof(uint64_t) <= capacity * m.kPathBytes;
  for (int id = thread; id <= r.budget; id += Shape::kThreads)
    write_ancestors(m.s, id, p.n_words, (staged ? m.costs : ancestors) + id * p.n_words);
  if (!staged) return;
  __syncthreads();
  for (int i = thread; i < n_words; i += Shape::kThreads) ancestors[i] = m.costs[i];
}

// With a list of `paths`, or what the device has room for.
template <class Shape>
void launch_for(const TreeBuildParams& p, int paths, Stream stream) {
  using Memory = LevelMemory<Shape>;
  const int available = device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin);
  const size_t fixed = Memory::fixed_bytes(p.depth);
  const int room = static_cast<int>((available - fixed) / Memory::kPathBytes);
  const int capacity = std::min(paths, room) / 4 * 4;
  launch(tree_build_kernel<Shape>,
         {.grid = dim3(p.batch),
          .block = dim3(Shape::kThreads),
          .shared_bytes = fixed + capacity * Memory::kPathBytes},
         stream, p, capacity);
}

}  // namespace

size_t tree_build_workspace(const TreeBuildParams&) {
  return 0;
}

void tree_build(const TreeBuildParams& p, Stream stream) {
  if (p.batch == 0) return;
  if (p.max_budget <= SmallShape::kMaxBudget)
    launch_for<SmallShape>(p, 2048, stream);
  else if (p.max_budget <= MediumShape::kMaxBudget)
    launch_for<MediumShape>(p, 6144, stream);
  else
    launch_for<LargeShape>(p, 12288, stream);
}

}  // namespace kdt::cuda
