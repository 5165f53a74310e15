// Two kernels: the target token of every row, one cluster a row, all rows at once; and the walk
// from the root, one CTA a request. With the targets given there is the walk alone.
#include <algorithm>

#include "cuda/device/dependency.cuh"
#include "cuda/device/prefetch.cuh"
#include "cuda/device/shared_address.cuh"
#include "cuda/draw_row.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kWalkThreads = 128;
constexpr int kStagedNodes = 1025;  // the largest tree
constexpr int kMaxStaged = 4;       // pieces of a thread: two CTAs fit, and one of any device
static_assert(kMaxStaged <= kEarlyPieces);

// The request that owns `row`, -1 if none. All threads of the CTA call it.
__device__ int owner_of(const TreeAcceptParams& p, int row) {
  __shared__ int owner;
  if (threadIdx.x == 0) owner = -1;
  __syncthreads();
  for (int b = threadIdx.x; b < p.batch; b += blockDim.x) {
    const int first = p.row_offset[b];
    if (row >= first && row - first < p.n_nodes[b]) owner = b;
  }
  __syncthreads();
  return owner;
}

__global__ void __launch_bounds__(kRowThreads, 2)
    draw_kernel(const TreeAcceptParams p, int32_t* targets, int cluster, int n_staged) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) char bytes[];
  __shared__ DrawShared shared;
  const int row = blockIdx.x / cluster;
  auto* list = reinterpret_cast<uint64_t*>(bytes);
  device::ClusterRow logits(p.logits + int64_t{row} * p.vocab, p.vocab, n_staged,
                            reinterpret_cast<Piece*>(bytes + kListBytes), shared.row, list,
                            kDrawList);
  // On their way while it is found out whose row it is. A greedy choice wants no more.
  EarlyPieces early;
  logits.load(early);
  const int request = owner_of(p, row);
  if (request < 0) return;
  DrawRow draw(logits, p.vocab, p.sampling[request], p.positions[row] + 1, shared, list);
  const int target = draw.draw(early);
  if (blockIdx.x % cluster == 0 && threadIdx.x == 0) targets[row] = target;
}

// What the walk needs to know of a node.
struct Links {
  int32_t token, sibling, target, child;
};

__device__ Links links_of(const TreeAcceptParams& p, const int32_t* targets, int64_t row) {
  return {p.tokens[row], p.next_sibling[row], targets[row], p.first_child[row]};
}

// Up to kStagedNodes nodes in shared memory. Past the last is one without a target, its own child.
struct StagedTree {
  int32_t tokens[kStagedNodes], siblings[kStagedNodes], targets[kStagedNodes];
  int32_t children[kStagedNodes];
  uint2 next[kStagedNodes + 1];  // of the accepted child, and of its: entries here, as addresses
};

// The first `limit` nodes of the path from the root, by one warp: a chain of loads, one for two
// nodes, in few instructions, which are cold. Writes them; returns how many there are, and the
// last.
__device__ int2 walk(const StagedTree& tree, int n_nodes, int limit, int32_t* accepted) {
  const int lane = threadIdx.x % 32;
  const uint32_t base = device::shared_address(tree.next);
  const uint32_t end = base + n_nodes * sizeof(uint2);
  uint32_t at = base, last = base;
  int n = 0;
  while (n < limit && at != end) {
    uint32_t mine = end;
#pragma unroll 1
    for (int i = 0; i < 32 && at != end; i += 2) {
      uint32_t child, grandchild;
      asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(child), "=r"(grandchild) : "r"(at));
      if (lane == i) mine = at;
      if (lane == i + 1) mine = child;
      at = grandchild;
    }
    const bool valid = mine != end && n + lane < limit;
    if (valid) accepted[n + lane] = static_cast<int32_t>((mine - base) / sizeof(uint2));
    const int count = __popc(__ballot_sync(device::kAllLanes, valid));
    last = __shfl_sync(device::kAllLanes, mine, count - 1);
    n += count;
  }
  return {n, static_cast<int>((last - base) / sizeof(uint2))};
}

// Trees that do not fit: no contract of tree_build's makes one.
__device__ int2 walk_in_memory(const TreeAcceptParams& p, const int32_t* targets, int64_t row,
                               int32_t* accepted) {
  int n = 0, last = 0;
  for (int node = 0; node >= 0 && n < p.max_accepted; ++n) {
    accepted[n] = last = node;
    const int target = targets[row + node];
    node = target < 0 ? -1 : p.first_child[row + node];
    while (node >= 0 && p.tokens[row + node] != target) node = p.next_sibling[row + node];
  }
  return {n, last};
}

__global__ void __launch_bounds__(kWalkThreads)
    walk_kernel(const TreeAcceptParams p, const int32_t* targets, int rows_per_request) {
  device::wait_for_previous();
  device::let_next_start();
  __shared__ StagedTree tree;
  const int request = blockIdx.x, thread = threadIdx.x;
  int32_t* accepted = p.accepted + int64_t{request} * p.max_accepted;
  const int n_nodes = p.n_nodes[request], row = p.row_offset[request];
  const auto stage = [&](int i, const Links& links) {
    tree.tokens[i] = links.token;
    tree.siblings[i] = links.sibling;
    tree.targets[i] = links.target;
    tree.children[i] = links.child;
  };
  // Requests are mostly of one size: this request's nodes, where they would be then, are on their
  // way before it is known how many there are and where. Staged in any case: loads of which only
  // some are wanted would be put off until then.
  const int guess = request * rows_per_request;
  const Links guessed = links_of(p, targets, min(int64_t{guess} + thread, int64_t{p.n_rows} - 1));
  // Sectors of the L2 cache that are written in part, and were not there, are read from memory.
  if (thread == 0) device::prefetch_l2(accepted);
  if (thread == 1) device::prefetch_l2(p.n_accepted + request);
  if (thread == 2) device::prefetch_l2(p.bonus + request);
  stage(thread, guessed);
  const bool staged = n_nodes <= kStagedNodes;
  const int n_staged = staged ? n_nodes : 0;
#pragma unroll 1
  for (int i = row == guess ? thread + kWalkThreads : thread; i < n_staged; i += kWalkThreads)
    stage(i, links_of(p, targets, int64_t{row} + i));
  __syncthreads();
  const uint32_t base = device::shared_address(tree.next);
#pragma unroll 1
  for (int i = thread; i <= n_staged && staged; i += kWalkThreads) {
    const int target = i < n_staged ? tree.targets[i] : -1;
    int child = target < 0 ? -1 : tree.children[i];
    while (child >= 0 && tree.tokens[child] != target) child = tree.siblings[child];
    tree.next[i].x = base + (child < 0 ? n_staged : child) * sizeof(uint2);
  }
  __syncthreads();
#pragma unroll 1
  for (int i = thread; i <= n_staged && staged; i += kWalkThreads)
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(tree.next[i].y) : "r"(tree.next[i].x));
  __syncthreads();
  if (thread >= 32 || n_nodes == 0) return;
  const int2 path = staged ? walk(tree, n_nodes, p.max_accepted, accepted)
                           : walk_in_memory(p, targets, row, accepted);
  const int target = staged ? tree.targets[path.y] : targets[int64_t{row} + path.y];
  if (thread != 0) return;
  if (target < 0) accepted[0] = 0;
  p.n_accepted[request] = target < 0 ? 1 : path.x;
  p.bonus[request] = target;
  p.status[request] = target < 0;
}

}  // namespace

size_t tree_accept_workspace(const TreeAcceptParams& largest) {
  return static_cast<size_t>(largest.n_rows) * sizeof(int32_t);
}

void tree_accept(const TreeAcceptParams& p, Stream stream) {
  if (p.batch == 0 || p.n_rows == 0) return;
  int32_t* targets = p.targets ? p.targets : static_cast<int32_t*>(p.workspace.data);
  if (p.logits) {
    const int cluster = p.vocab <= device::kSmallVocab ? 1 : device::kMaxCluster;
    const int n_staged = std::min(device::pieces_of(p.vocab, cluster), kMaxStaged);
    require_at_most("tree_accept", "n_rows", p.n_rows, kMostGridX / cluster);
    launch(draw_kernel,
           {.grid = dim3(p.n_rows * cluster),
            .block = dim3(kRowThreads),
            .shared_bytes = kListBytes + n_staged * kRowThreads * sizeof(Piece),
            .cluster = cluster},
           stream, p, targets, cluster, n_staged);
  }
  launch(walk_kernel, {.grid = dim3(p.batch), .block = dim3(kWalkThreads)}, stream, p, targets,
         p.n_rows / p.batch);
}

}  // namespace kdt::cuda
