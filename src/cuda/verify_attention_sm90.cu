// Tree-verify attention on Hopper (sm_90a) with wgmma and the bulk tensor copy engine: one kernel
// for prefix, tail, mask, split and combine, and a small one that plans a batch for it.
#include <cudaTypedefs.h>

#include <cstddef>

#include "cuda/device/dependency.cuh"
#include "cuda/launch.h"
#include "cuda/verify_attention.h"
#include "cuda/verify_attention_sm90_combine.cuh"
#include "cuda/verify_attention_sm90_consumer.cuh"
#include "cuda/verify_attention_sm90_plan.cuh"
#include "cuda/verify_attention_sm90_prefetch.cuh"
#include "cuda/verify_attention_sm90_producer.cuh"

namespace kdt::cuda {
namespace sm90 {

// By the consumer warps: each barrier takes a warp 80 cycles.
__device__ __forceinline__ void init_barriers(Shared& shared, int warp) {
  if (shared_address(&shared) % 1024 != 0) __trap();
  constexpr auto index = [](size_t at) {
    return static_cast<int>((at - offsetof(Shared, k_full)) / sizeof(MBarrier));
  };
  constexpr int kOfFour = index(offsetof(Shared, pair_empty));
  constexpr int kOfEight = index(offsetof(Shared, q_empty));
  constexpr int kEnd = index(offsetof(Shared, slices_full)) + 1;
  if (threadIdx.x % 32 == 0) {
#pragma unroll 1
    for (int i = warp; i < kEnd; i += kConsumerWarps)
      mbarrier_init(&shared.k_full[0][0] + i, i < kOfFour ? 1 : i < kOfEight ? 4 : kConsumerWarps);
    mbarrier_fence_init();
  }
}

// As many thread blocks as the attention kernel has: each makes the plan of one of them.
__global__ void __launch_bounds__(32)
    plan_kernel([[maybe_unused]] const __grid_constant__ PlanArgs args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL
  wait_for_previous();
  make_plan(args);
#endif
}

template <typename Element>
__global__ void __launch_bounds__(kThreads, 1)
    verify_attention_kernel([[maybe_unused]] const __grid_constant__ Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // other architectures have an empty kernel that is never launched
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
  const int warp = uniform(threadIdx.x / 32);
  const bool consumes = warp < kConsumerWarps, produces = warp == kConsumerWarps;
  uint4 words;  // of the plan, the producer's
  if (consumes)
    init_barriers(shared, warp);
  else if (produces)
    words = load_plan(args);
  else
    prefetch_start(args);
  __syncthreads();
  if (consumes) {
    limit_registers<kConsumerRegisters, true>();
    int n_jobs = 0, n_blocks = 0;
    Job job = next_job(shared, n_jobs++);
    for (; job.kind == Job::kAttend; job = next_job(shared, n_jobs++)) {
      SegmentConsumer<Element>(args, shared, job, n_jobs - 1, n_blocks).run();
      n_blocks += job.segment.n_blocks;
    }
    for (int n = 0; job.kind == Job::kCombine; job = next_job(shared, n_jobs++))
      n += combine(args, job, shared, n);
  } else {
    limit_registers<kProducerRegisters, false>();
    if (produces) Producer(args, shared).run(words);
  }
#endif
}

int n_blocks(const Machine& machine) {
  return machine.n_ctas < kMaxBlocks ? machine.n_ctas : kMaxBlocks;
}

// [rows, 576] in boxes of 64 x 64.
CUtensorMap tensor_map(const void* data, DType dtype, int64_t rows) {
  static const auto encode = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult status;
    KDT_CUDA_CHECK(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000,
                                                    cudaEnableDefault, &status));
    if (status != cudaDriverEntryPointSuccess) KDT_CUDA_CHECK(cudaErrorSymbolNotFound);
    return reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(entry);
  }();
  CUtensorMap map;
  const cuuint64_t size[2] = {kWidth, static_cast<cuuint64_t>(rows)};
  const cuuint64_t stride[1] = {kWidth * 2};
  const cuuint32_t box[2] = {64, 64}, step[2] = {1, 1};
  const CUresult result = encode(
      &map,
      dtype == DType::kBF16 ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16 : CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2,
      const_cast<void*>(data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
      CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) KDT_CUDA_CHECK(cudaErrorInvalidValue);
  return map;
}

// Parts, their statistics, plans, launch numbers.
PlanArgs plan_args(const VerifyAttentionParams& p, int blocks) {
  const size_t slots = Schedule::slots(blocks);
  PlanArgs args;
  args.lengths = {p.rows.n_nodes, p.rows.prefix_len, p.rows.n_requests, p.n_heads};
  args.row_offset = p.rows.row_offset;
  args.block_table = p.rows.block_table;
  args.max_blocks = p.rows.max_blocks;
  args.plans = reinterpret_cast<Plan*>(static_cast<char*>(p.workspace.data) + slots * kPartBytes);
  args.last_launch = reinterpret_cast<uint32_t*>(args.plans + blocks);
  return args;
}

Args make_args(const VerifyAttentionParams& p, int blocks) {
  Args args;
  static_cast<PlanArgs&>(args) = plan_args(p, blocks);
  args.q_map = tensor_map(p.q, p.q_dtype, int64_t{p.rows.n_rows} * p.n_heads);
  args.tail_map = tensor_map(p.tail, p.kv_dtype, p.rows.n_rows);
  args.pages_map = p.n_pages > 0
                       ? tensor_map(p.kv_pages, p.kv_dtype, int64_t{p.n_pages} * kPageTokens)
                       : args.tail_map;
  args.q = p.q;
  args.pages = p.kv_pages;
  args.n_query_rows = int64_t{p.rows.n_rows} * p.n_heads;
  args.ancestors = p.ancestors;
  args.out = p.out;
  args.lse = p.lse;
  args.partial_out = static_cast<uint16_t*>(p.workspace.data);
  args.partial_stats = reinterpret_cast<RowStats*>(args.partial_out + size_t{kPartialElements} *
                                                                          Schedule::slots(blocks));
  args.n_words = p.n_words;
  args.out_type = p.out_dtype == DType::kF32    ? OutType::kF32
                  : p.out_dtype == DType::kBF16 ? OutType::kBF16
                                                : OutType::kF16;
  args.scale_log2 = p.scale * kLog2E;
  return args;
}

}  // namespace sm90

bool sm90_supports(const VerifyAttentionParams& p, const Machine& machine) {
  const bool half = p.q_dtype == DType::kBF16 || p.q_dtype == DType::kF16;
  // The schedule divides numbers below 2^21, or has quotients below it.
  const double items =
      static_cast<double>(p.rows.n_rows) * p.n_heads / sm90::kRows + p.rows.n_requests;
  const double key_blocks = p.rows.max_blocks + p.rows.n_rows / 64.0 + 16.0;
  const bool countable =
      items < 1e6 && key_blocks < 1e6 && items * key_blocks < 1e6 * sm90::n_blocks(machine);
  return machine.hopper && machine.shared_bytes >= static_cast<int>(sizeof(sm90::Shared)) && half &&
         p.q_dtype == p.kv_dtype && !p.batch_invariant && p.latent_dim == sm90::kLatent &&
         p.latent_dim + p.rope_dim == sm90::kWidth && p.scale > 0.0f && countable &&
         rows_aligned(p);
}

size_t sm90_workspace(const Machine& machine) {
  if (!machine.hopper) return 0;
  const size_t blocks = sm90::n_blocks(machine), slots = sm90::Schedule::slots(blocks);
  return slots * sm90::kPartBytes + blocks * sizeof(sm90::Plan) + slots * sizeof(uint32_t);
}

void sm90_plan(const VerifyAttentionParams& p, const Machine& machine, Stream stream) {
  const int blocks = sm90::n_blocks(machine);
  launch(sm90::plan_kernel, {.grid = dim3(blocks), .block = dim3(32)}, stream,
         sm90::plan_args(p, blocks));
  note_plan(p);
}

void sm90_attention(const VerifyAttentionParams& p, const Machine& machine, Stream stream) {
  require_plan(p);
  const int blocks = sm90::n_blocks(machine);
  const auto kernel = p.q_dtype == DType::kBF16 ? sm90::verify_attention_kernel<device::Bf16>
                                                : sm90::verify_attention_kernel<device::Fp16>;
  KDT_CUDA_CHECK(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                      static_cast<int>(sizeof(sm90::Shared))));
  // Thread blocks wait for each other's parts, so all of them must be resident.
  cudaLaunchAttribute attribute;
  attribute.id = cudaLaunchAttributeCooperative;
  attribute.val.cooperative = 1;
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(blocks);
  config.blockDim = dim3(sm90::kThreads);
  config.dynamicSmemBytes = sizeof(sm90::Shared);
  config.stream = native(stream);
  config.attrs = &attribute;
  config.numAttrs = 1;
  KDT_CUDA_CHECK(cudaLaunchKernelEx(&config, kernel, sm90::make_args(p, blocks)));
}

}  // namespace kdt::cuda
