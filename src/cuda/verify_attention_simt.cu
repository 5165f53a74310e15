// Tree-verify attention in fp32 arithmetic, any shape and type: one CTA for a (row, head), each
// warp every eighth key with an online softmax of its own. Written to be read, not to be fast.
#include <cuda_fp8.h>

#include "cuda/device/dependency.cuh"
#include "cuda/device/lanes.cuh"
#include "cuda/device/online_softmax.cuh"
#include "cuda/device/store.cuh"
#include "cuda/launch.h"
#include "cuda/verify_attention.h"

namespace kdt::cuda {
namespace {

constexpr int kWarps = 8;

__device__ float element(const void* array, DType dtype, int64_t i) {
  switch (dtype) {
    case DType::kF32:
      return static_cast<const float*>(array)[i];
    case DType::kBF16:
      return __bfloat162float(static_cast<const __nv_bfloat16*>(array)[i]);
    case DType::kF16:
      return __half2float(static_cast<const __half*>(array)[i]);
    default:
      return __half2float(__half(
          __nv_cvt_fp8_to_halfraw(static_cast<const __nv_fp8_storage_t*>(array)[i], __NV_E4M3)));
  }
}

__device__ void store(void* array, DType dtype, int64_t i, float x) {
  if (dtype == DType::kF32)
    static_cast<float*>(array)[i] = x;
  else if (dtype == DType::kBF16)
    static_cast<__nv_bfloat16*>(array)[i] = __float2bfloat16(x);
  else
    static_cast<__half*>(array)[i] = __float2half(x);
}

__device__ float warp_sum(float x) {
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(device::kAllLanes, x, step);
  return x;
}

// Row `row` of the [., width] array `rows` times its scale.
struct Key {
  const void* rows;
  int64_t row;
  float scale;
};

__device__ Key key_at(const VerifyAttentionParams& p, int request, int position) {
  const bool cached = position < p.rows.prefix_len[request];
  int64_t row;
  if (cached) {
    const int32_t* table = p.rows.block_table + static_cast<int64_t>(request) * p.rows.max_blocks;
    row =
        static_cast<int64_t>(table[position / kPageTokens]) * kPageTokens + position % kPageTokens;
  } else {
    row = static_cast<int64_t>(p.rows.row_offset[request]) + position - p.rows.prefix_len[request];
  }
  const float* scales = cached ? p.page_scales : p.tail_scales;
  return {cached ? p.kv_pages : p.tail, row, p.kv_dtype == DType::kF8E4M3 ? scales[row] : 1.0f};
}

__device__ bool sees(const VerifyAttentionParams& p, int request, int node, int position) {
  const int tail = position - p.rows.prefix_len[request];
  if (tail < 0) return true;
  if (!p.ancestors) return tail <= node;
  const int64_t row = static_cast<int64_t>(p.rows.row_offset[request]) + node;
  return p.ancestors[row * p.n_words + tail / 64] >> (tail % 64) & 1;
}

// Shared memory: the query [width], then for each warp its weighted values [latent].
__global__ void __launch_bounds__(kWarps * 32) simt_kernel(const VerifyAttentionParams p) {
  extern __shared__ float shared[];
  __shared__ float maxima[kWarps], sums[kWarps];
  __shared__ int owner;
  device::wait_for_previous();
  device::let_next_start();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int width = p.latent_dim + p.rope_dim;
  const int64_t query = blockIdx.x;
  const int row = static_cast<int>(query / p.n_heads);

  if (threadIdx.x == 0) owner = -1;
  __syncthreads();
  for (int b = threadIdx.x; b < p.rows.n_requests; b += kWarps * 32) {
    const int node = row - p.rows.row_offset[b];
    if (node >= 0 && node < p.rows.n_nodes[b]) owner = b;
  }
  float* q = shared;
  float* values = shared + width + warp * p.latent_dim;
  for (int d = threadIdx.x; d < width; d += kWarps * 32)
    q[d] = element(p.q, p.q_dtype, query * width + d);
  for (int d = lane; d < p.latent_dim; d += 32) values[d] = 0.0f;
  __syncthreads();
  const int request = owner;
  if (request < 0) return;

  const int node = row - p.rows.row_offset[request];
  const int n_keys = p.rows.prefix_len[request] + p.rows.n_nodes[request];
  float max = -INFINITY, sum = 0.0f;
  for (int position = warp; position < n_keys; position += kWarps) {
    if (!sees(p, request, node, position)) continue;
    const Key key = key_at(p, request, position);
    float s = 0.0f;
    for (int d = lane; d < width; d += 32)
      s += q[d] * (element(key.rows, p.kv_dtype, key.row * width + d) * key.scale);
    s = warp_sum(s) * p.scale;
    const float new_max = fmaxf(max, s);
    const float shift = device::shift(new_max);
    const float shrink = expf(max - shift), weight = expf(s - shift);
    max = new_max;
    sum = sum * shrink + weight;
    for (int d = lane; d < p.latent_dim; d += 32)
      values[d] = values[d] * shrink +
                  weight * (element(key.rows, p.kv_dtype, key.row * width + d) * key.scale);
  }
  if (lane == 0) {
    maxima[warp] = max;
    sums[warp] = sum;
  }
  __syncthreads();

  float all_max = -INFINITY, all_sum = 0.0f;
  for (int w = 0; w < kWarps; ++w) all_max = fmaxf(all_max, maxima[w]);
  const float shift = device::shift(all_max);
  for (int w = 0; w < kWarps; ++w) all_sum += sums[w] * expf(maxima[w] - shift);
  for (int d = threadIdx.x; d < p.latent_dim; d += kWarps * 32) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w)
      total += shared[width + w * p.latent_dim + d] * expf(maxima[w] - shift);
    store(p.out, p.out_dtype, query * p.latent_dim + d, all_sum == 0.0f ? 0.0f : total / all_sum);
  }
  if (threadIdx.x == 0) p.lse[query] = all_sum == 0.0f ? -INFINITY : all_max + logf(all_sum);
}

size_t simt_shared_bytes(const VerifyAttentionParams& p) {
  return (static_cast<size_t>(p.latent_dim) * (kWarps + 1) + p.rope_dim) * sizeof(float);
}

}  // namespace

bool simt_supports(const VerifyAttentionParams& p, const Machine& machine) {
  return simt_shared_bytes(p) + 1024 <= static_cast<size_t>(machine.shared_bytes);
}

void simt_attention(const VerifyAttentionParams& p, const Machine&, Stream stream) {
  const int64_t n_queries = int64_t{p.rows.n_rows} * p.n_heads;
  require_at_most("verify_attention", "n_rows * n_heads", n_queries, kMostGridX);
  launch(simt_kernel,
         {.grid = {static_cast<unsigned>(n_queries)},
          .block = {kWarps * 32},
          .shared_bytes = simt_shared_bytes(p)},
         stream, p);
}

}  // namespace kdt::cuda
