// A warp merges one row; four elements per access where the arrays allow it.
#include "base/rounding.h"
#include "cuda/device/dependency.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kWarps = 8;  // of a CTA

// The weights of the two sides; an empty side's is 0 and its values, NaN included, are not used.
struct Shares {
  float a, b, lse;
  bool use_a, use_b;
};

__device__ Shares shares_of(float lse_a, float lse_b) {
  const bool use_a = lse_a != -INFINITY, use_b = lse_b != -INFINITY;
  if (!use_a || !use_b) return {1.0f, 1.0f, use_a ? lse_a : lse_b, use_a, use_b};
  const float peak = fmaxf(lse_a, lse_b);
  const float weight_a = expf(lse_a - peak), weight_b = expf(lse_b - peak);
  const float total = weight_a + weight_b;
  return {weight_a / total, weight_b / total, peak + logf(total), true, true};
}

__device__ float merge(const Shares& s, float a, float b) {
  if (s.use_a && s.use_b) return s.a * a + s.b * b;
  return s.use_a ? a : s.use_b ? b : 0.0f;
}

__device__ float4 merge(const Shares& s, const float4& a, const float4& b) {
  return {merge(s, a.x, b.x), merge(s, a.y, b.y), merge(s, a.z, b.z), merge(s, a.w, b.w)};
}

// T is float or float4; `width` elements of it in a row. Outputs may be inputs: an element is read
// and written by one thread, and lse after every lane has read it.
template <typename T>
__global__ void __launch_bounds__(32 * kWarps) lse_merge_kernel(const LseMergeParams p, int width) {
  device::wait_for_previous();
  device::let_next_start();
  const int64_t row = int64_t{blockIdx.x} * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (row >= p.n_rows) return;
  const Shares shares = shares_of(p.lse_a[row], p.lse_b[row]);
  const T* a = reinterpret_cast<const T*>(p.out_a) + row * width;
  const T* b = reinterpret_cast<const T*>(p.out_b) + row * width;
  T* out = reinterpret_cast<T*>(p.out) + row * width;
#pragma unroll 4
  for (int i = lane; i < width; i += 32) out[i] = merge(shares, a[i], b[i]);
  __syncwarp();
  if (lane == 0) p.lse[row] = shares.lse;
}

bool quads(const LseMergeParams& p) {
  const auto aligned = [](const float* x) { return reinterpret_cast<uintptr_t>(x) % 16 == 0; };
  return p.dim % 4 == 0 && aligned(p.out_a) && aligned(p.out_b) && aligned(p.out);
}

}  // namespace

void lse_merge(const LseMergeParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  require_at_most("lse_merge", "n_rows", p.n_rows, kMostGridX * kWarps);
  const LaunchShape shape = {.grid = dim3(static_cast<unsigned>(ceil_div(p.n_rows, kWarps))),
                             .block = dim3(32 * kWarps)};
  if (quads(p))
    launch(lse_merge_kernel<float4>, shape, stream, p, p.dim / 4);
  else
    launch(lse_merge_kernel<float>, shape, stream, p, p.dim);
}

}  // namespace kdt::cuda
