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

// steps[node], from their address in shared memory. The walk is a chain of these reads; left to
// itself the compiler forms the address anew in each, from a slow special register.
__device__ __forceinline__ Step read_step(uint32_t steps, int node) {
  Step step;
  asm volatile("ld.shared.v2.s32 {%0, %1}, [%2];"
               : "=r"(step.target), "=r"(step.child)
               : "r"(steps + node * static_cast<uint32_t>(sizeof(Step))));
  return step;
}

// Requests are mostly of one size: brings where the request's nodes would be then towards the CTA
// while its row offset is on its way.
__device__ void prefetch_nodes(const TreeAcceptParams& p, const int32_t* targets) {
  const int32_t* arrays[] = {p.tokens, p.next_sibling, p.first_child, targets};
  const int size = p.n_rows / p.batch;
  const int node = static_cast<int>(threadIdx.x) * 32;  // a cache line of them
  if (node >= size + 31) return;
  const int64_t row = min(int64_t{blockIdx.x} * size + node, int64_t{p.n_rows} - 1);
#pragma unroll
  for (const int32_t* array : arrays)
    asm volatile("prefetch.global.L2 [%0];" ::"l"(__cvta_generic_to_global(array + row)));
}

__global__ void __launch_bounds__(kWalkThreads)
    walk_kernel(const TreeAcceptParams p, const int32_t* all_targets) {
  device::wait_for_previous();
  device::let_next_start();
  __shared__ int32_t staged_tokens[kStagedNodes], staged_siblings[kStagedNodes];
  __shared__ Step steps[kStagedNodes];
  const int request = blockIdx.x;
  const int n_nodes = p.n_nodes[request], row = p.row_offset[request];
  prefetch_nodes(p, all_targets);
  const int32_t *tokens = p.tokens + row, *siblings = p.next_sibling + row;
  const int32_t *first_child = p.first_child + row, *targets = all_targets + row;
  const int n_staged = min(n_nodes, kStagedNodes);
  for (int i = threadIdx.x; i < n_staged; i += kWalkThreads) {
    staged_tokens[i] = tokens[i];
    staged_siblings[i] = siblings[i];
    steps[i] = {targets[i], first_child[i]};
  }
  __syncthreads();
  for (int i = threadIdx.x; i < n_staged; i += kWalkThreads)
    steps[i] = n_nodes <= kStagedNodes
                   ? step_from(steps[i].target, steps[i].child, staged_tokens, staged_siblings)
                   : step_from(steps[i].target, steps[i].child, tokens, siblings);
  __syncthreads();
  if (threadIdx.x != 0 || n_nodes == 0) return;
  int32_t* accepted = p.accepted + int64_t{request} * p.max_accepted;
  uint32_t staged = static_cast<uint32_t>(__cvta_generic_to_shared(steps));
  asm volatile("" : "+r"(staged));
  int n_accepted = 0;
  Step step = {-1, 0};
  while (step.child >= 0 && n_accepted < p.max_accepted) {
    accepted[n_accepted++] = step.child;
    step = step.child < kStagedNodes
               ? read_step(staged, step.child)
               : step_from(targets[step.child], first_child[step.child], tokens, siblings);
  }
  if (step.target < 0) {
    accepted[0] = 0;
    n_accepted = 1;
  }
  p.n_accepted[request] = n_accepted;
  p.bonus[request] = step.target;
  p.status[request] = step.target < 0;
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
            .shared_bytes = kDrawBytes,
            .cluster = cluster},
           stream, p, targets, cluster);
  }
  launch(walk_kernel, {.grid = dim3(p.batch), .block = dim3(kWalkThreads)}, stream, p, targets);
}

}  // namespace kdt::cuda
