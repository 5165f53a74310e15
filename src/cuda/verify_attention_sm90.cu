// Tree-verify attention on Hopper (sm_90a) with wgmma and the bulk tensor copy engine: one kernel
// for prefix, tail, mask, split and combine.
#include <cudaTypedefs.h>

#include "cuda/launch.h"
#include "cuda/verify_attention.h"
#include "cuda/verify_attention_sm90_combine.cuh"
#include "cuda/verify_attention_sm90_consumer.cuh"
#include "cuda/verify_attention_sm90_prefetch.cuh"
#include "cuda/verify_attention_sm90_producer.cuh"

namespace kdt::cuda {
namespace sm90 {

__device__ __forceinline__ void init_barriers(Shared& shared) {
  if (shared_address(&shared) % 1024 != 0) __trap();
  mbarrier_init(&shared.q_full, 4);
  mbarrier_init(&shared.q_empty, 8);
  for (int slot = 0; slot < 2; ++slot) {
    for (int j = 0; j < kWidthTiles; ++j) mbarrier_init(&shared.k_full[slot][j], 1);
    for (int pair = 0; pair < 4; ++pair) mbarrier_init(&shared.pair_empty[slot][pair], 4);
    mbarrier_init(&shared.rope_empty[slot], 4);
    for (int j = 0; j < kChunks; ++j) mbarrier_init(&shared.p_full[slot][j], 4);
    mbarrier_init(&shared.job_full[slot], 1);
    mbarrier_init(&shared.job_empty[slot], 8);
  }
  mbarrier_fence_init();
}

template <typename Element>
__global__ void __launch_bounds__(kThreads, 1)
    verify_attention_kernel([[maybe_unused]] const __grid_constant__ Args args) {
#ifdef __CUDA_ARCH_FEAT_SM90_ALL  // other architectures have an empty kernel that is never launched
  extern __shared__ __align__(1024) uint8_t dynamic_shared[];
  Shared& shared = *reinterpret_cast<Shared*>(dynamic_shared);
  const int warp = uniform(threadIdx.x / 32);
  const bool consumes = warp < kConsumerThreads / 32, produces = warp == kConsumerThreads / 32;
  if (consumes) {
    if (threadIdx.x == 0) init_barriers(shared);
  } else if (produces) {
    shared.totals = batch_totals(args.lengths);
    shared.gangs = choose_gangs(args.lengths, shared.totals);
  } else {
    prefetch_start(args);
  }
  __syncthreads();
  if (consumes) {
    limit_registers<kConsumerRegisters, true>();
    int n_jobs = 0, n_blocks = 0;
    Job job = next_job(shared, n_jobs++);
    for (; job.kind == Job::kAttend; job = next_job(shared, n_jobs++)) {
      SegmentConsumer<Element>(args, shared, job, n_jobs - 1, n_blocks).run();
      n_blocks += job.segment.n_blocks;
    }
    for (; job.kind == Job::kCombine; job = next_job(shared, n_jobs++)) combine(args, job, shared);
  } else {
    limit_registers<kProducerRegisters, false>();
    if (produces)
      Producer(args, shared).run(Schedule(args.lengths, shared.totals, gridDim.x, shared.gangs));
  }
#endif
}

// Counters of the parts of items, zero between launches: a bank for each workspace.
__device__ uint32_t part_counters[kCounterBanks][2 * kMaxBlocks];

uint32_t* counters_of(const void* workspace) {
  void* counters = nullptr;  // of the current device
  KDT_CUDA_CHECK(cudaGetSymbolAddress(&counters, part_counters));
  return static_cast<uint32_t*>(counters) + size_t{2} * kMaxBlocks * counter_bank(workspace);
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

Args make_args(const VerifyAttentionParams& p, int blocks) {
  Args args;
  args.q_map = tensor_map(p.q, p.q_dtype, int64_t{p.rows.n_rows} * p.n_heads);
  args.tail_map = tensor_map(p.tail, p.kv_dtype, p.rows.n_rows);
  args.pages_map = p.n_pages > 0
                       ? tensor_map(p.kv_pages, p.kv_dtype, int64_t{p.n_pages} * kPageTokens)
                       : args.tail_map;
  args.lengths = {p.rows.n_nodes, p.rows.prefix_len, p.rows.n_requests, p.n_heads};
  args.q = p.q;
  args.pages = p.kv_pages;
  args.n_query_rows = int64_t{p.rows.n_rows} * p.n_heads;
  args.n_pages = p.n_pages;
  args.row_offset = p.rows.row_offset;
  args.block_table = p.rows.block_table;
  args.ancestors = p.ancestors;
  args.out = p.out;
  args.lse = p.lse;
  const int slots = Schedule::slots(blocks);
  args.partial_out = static_cast<uint16_t*>(p.workspace.data);
  args.partial_stats =
      reinterpret_cast<float4*>(args.partial_out + size_t{kPartialElements} * slots);
  args.counters = counters_of(p.workspace.data);
  args.max_blocks = p.rows.max_blocks;
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
  const size_t slots = sm90::Schedule::slots(sm90::n_blocks(machine));
  return slots * (sm90::kPartialElements * sizeof(uint16_t) + sm90::kRows * sizeof(float4));
}

void sm90_attention(const VerifyAttentionParams& p, const Machine& machine, Stream stream) {
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
