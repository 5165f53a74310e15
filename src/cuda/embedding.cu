// Rows of the table, a stripe of kStripe elements a CTA.
#include "base/rounding.h"
#include "cuda/device/dependency.cuh"
#include "cuda/device/logits.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kPerThread = 4;
constexpr int kStripe = kThreads * kPerThread;

// A token outside the vocabulary gives a row of NaN: its request fails, the others do not.
template <typename T>
__global__ void __launch_bounds__(kThreads) embedding_kernel(const EmbeddingParams p) {
  device::wait_for_previous();
  device::let_next_start();
  const int32_t token = p.tokens[blockIdx.x];
  const bool known = token >= 0 && token < p.vocab;
  const T* row = static_cast<const T*>(p.table) + int64_t{known ? token : 0} * p.hidden;
  float* out = p.out + int64_t{blockIdx.x} * p.hidden;
#pragma unroll
  for (int j = 0; j < kPerThread; ++j) {
    const int i = blockIdx.y * kStripe + j * kThreads + threadIdx.x;
    if (i < p.hidden) out[i] = known ? device::to_float(row[i]) : NAN;
  }
}

}  // namespace

void embedding(const EmbeddingParams& p, Stream stream) {
  if (p.n_rows == 0) return;
  require_at_most("embedding", "hidden", p.hidden, kMostGridYZ * kStripe);
  const LaunchShape shape = {.grid = dim3(p.n_rows, ceil_div(p.hidden, kStripe)),
                             .block = dim3(kThreads)};
  switch (p.dtype) {
    case DType::kF32:
      return launch(embedding_kernel<float>, shape, stream, p);
    case DType::kBF16:
      return launch(embedding_kernel<__nv_bfloat16>, shape, stream, p);
    default:
      return launch(embedding_kernel<__half>, shape, stream, p);
  }
}

}  // namespace kdt::cuda
