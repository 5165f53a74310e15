// Two kernels: the target token of every row, one cluster a row, all rows at once; and the walk
// from the root, one CTA a request. With the targets given there is the walk alone.
#include "cuda/device/dependency.cuh"
#include "cuda/draw_row.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kWalkThreads = 128;
constexpr int kStagedNodes = 1025;  // the largest tree

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
    draw_kernel(const TreeAcceptParams p, int32_t* targets, int cluster) {
  device::wait_for_previous();
  device::let_next_start();
  extern __shared__ __align__(16) uint64_t list[];
  __shared__ DrawShared shared;
  const int row = blockIdx.x / cluster;
  const int request = owner_of(p, row);
  if (request < 0) return;
  DrawRow draw(p.logits + int64_t{row} * p.vocab, p.vocab, p.sampling[request],
               p.positions[row] + 1, shared, list);
  const int target = draw.draw();
  if (blockIdx.x % cluster == 0 && threadIdx.x == 0) targets[row] = target;
}

// A node's target, and the child that carries it or -1.
struct Step {
  int target, child;
};

__device__ Step step_from(int target, int child, const int32_t* tokens,
                          const int32_t* next_sibling) {
  while (target >= 0 && child >= 0 && tokens[child] != target) child = next_sibling[child];
  return {target, target < 0 ? -1 : child};
}

__global__ void __launch_bounds__(kWalkThreads)
    walk_kernel(const TreeAcceptParams p, const int32_t* all_targets) {
  device::wait_for_previous();
  device::let_next_start();
  __shared__ int32_t staged_tokens[kStagedNodes], staged_siblings[kStagedNodes];
  __shared__ Step steps[kStagedNodes];
  const int request = blockIdx.x;
  const int n_nodes = p.n_nodes[request], row = p.row_offset[request];
  if (n_nodes == 0) return;
  const int32_t *tokens = p.tokens + row, *siblings = p.next_sibling + row;
  const int32_t *first_child = p.first_child + row, *targets = all_targets + row;
  const bool staged = n_nodes <= kStagedNodes;
  for (int i = threadIdx.x; staged && i < n_nodes; i += kWalkThreads) {
    staged_tokens[i] = tokens[i];
    staged_siblings[i] = siblings[i];
    steps[i] = {targets[i], first_child[i]};
  }
  __syncthreads();
  for (int i = threadIdx.x; staged && i < n_nodes; i += kWalkThreads)
    steps[i] = step_from(steps[i].target, steps[i].child, staged_tokens, staged_siblings);
  __syncthreads();
  if (threadIdx.x != 0) return;
  int32_t* accepted = p.accepted + int64_t{request} * p.max_accepted;
  int n_accepted = 0, node = 0, target = -1;
  while (node >= 0 && n_accepted < p.max_accepted) {
    accepted[n_accepted++] = node;
    const Step step =
        staged ? steps[node] : step_from(targets[node], first_child[node], tokens, siblings);
    target = step.target;
    node = step.child;
  }
  if (target < 0) {
    accepted[0] = 0;
    n_accepted = 1;
  }
  p.n_accepted[request] = n_accepted;
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
    launch(draw_kernel,
           {.grid = dim3(p.n_rows * cluster),
            .block = dim3(kRowThreads),
            .shared_bytes = kDrawList * sizeof(uint64_t),
            .cluster = cluster},
           stream, p, targets, cluster);
  }
  launch(walk_kernel, {.grid = dim3(p.batch), .block = dim3(kWalkThreads)}, stream, p, targets);
}

}  // namespace kdt::cuda
