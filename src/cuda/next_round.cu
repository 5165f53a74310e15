// One thread a request.
#include "base/rounding.h"
#include "cuda/device/dependency.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 64;

__global__ void __launch_bounds__(kThreads) next_round_kernel(const NextRoundParams p) {
  device::wait_for_previous();
  device::let_next_start();
  const int b = blockIdx.x * kThreads + threadIdx.x;
  if (b >= p.batch) return;
  const int32_t bonus = p.bonus[b], max_len = p.max_len[b];
  int32_t prefix = p.prefix_len[b];
  const int32_t next = prefix + p.n_accepted[b];
  if (bonus >= 0 && next < max_len) {
    p.prefix_len[b] = prefix = next;
    p.root_token[b] = bonus;
  }
  p.max_depth[b] = min(p.depth, max_len - 1 - prefix);
}

}  // namespace

void next_round(const NextRoundParams& p, Stream stream) {
  if (p.batch == 0) return;
  const int n_ctas = ceil_div(p.batch, kThreads);
  launch(next_round_kernel, {.grid = dim3(n_ctas), .block = dim3(kThreads)}, stream, p);
}

}  // namespace kdt::cuda
