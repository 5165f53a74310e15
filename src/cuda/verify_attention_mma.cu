// Tree-verify attention with mma.sync (sm_90 and up): the kernel and the choice of its tile.
#include <algorithm>

#include "base/rounding.h"
#include "cuda/verify_attention.h"
#include "cuda/verify_attention_tile.cuh"

namespace kdt::cuda {
namespace {

constexpr int kLargestTile = 64;

// Asks the L2 for a segment's queries and first keys. One warp.
template <int kRows, bool kF8>
__device__ void prefetch_start(const VerifyAttentionParams& p, const device::Segment& segment) {
  const int first_row = segment.tile * kRows, request = segment.request;
  const int n_rows = min(p.rows.n_nodes[request] * p.n_heads - first_row, kRows);
  const int64_t query = static_cast<int64_t>(p.rows.row_offset[request]) * p.n_heads + first_row;
  device::prefetch_l2(static_cast<const char*>(p.q) + query * kQueryBytes, n_rows * kQueryBytes);
  const int key = segment.first_block * kBlockKeys;
  if (key + kBlockKeys > p.rows.prefix_len[request]) return;
  const int64_t page =
      p.rows.block_table[static_cast<int64_t>(request) * p.rows.max_blocks + key / kPageTokens];
  constexpr int kBytes = KeyBlock<__half, kF8>::kSourceBytes;
  device::prefetch_l2(
      static_cast<const char*>(p.kv_pages) + (page * kPageTokens + key % kPageTokens) * kBytes,
      kBlockKeys * kBytes);
}

template <typename T, int kRows, int kStages, bool kF8>
__device__ void run_segments(const VerifyAttentionParams& p, const Partials& partials,
                             char* shared) {
  using Memory = TileMemory<kRows, kStages, kF8>;
  using Schedule = device::Schedule<kRows, kBlockKeys>;
  auto& schedule = *reinterpret_cast<Schedule*>(shared + Memory::kSchedule);
  auto& state = *reinterpret_cast<TileState*>(shared + Memory::kState);
  const device::ScheduleParams sizes = schedule_params(p, gridDim.x);
  device::wait_for_previous();
  device::let_next_start();
  schedule.build(sizes);
  if (threadIdx.x == 0) state.odd_keys = 0;
  device::Cursor cursor = {static_cast<int>(blockIdx.x)};
  device::Segment segment;
  for (bool more = schedule.next(sizes, cursor, segment); more;) {
    // While the segment's first copies are under way, the next one is found.
    const auto look_ahead = [&] {
      device::Segment next = segment;
      more = schedule.next(sizes, cursor, next);
      if (threadIdx.x == 0) {
        state.segment = segment;
        state.next = next;
        state.cursor = cursor;
        state.more = more;
      }
      if (more && threadIdx.x / 32 == 1) prefetch_start<kRows, kF8>(p, next);
    };
    SegmentRun<T, kRows, kStages, kF8>(p, shared, segment, look_ahead).run(partials);
    segment = state.next;
    cursor = state.cursor;
    more = state.more;
    __syncthreads();
  }
}

template <typename T, int kRows, int kStages, bool kF8>
__global__ void __launch_bounds__(kTileThreads, 1)
    attention_kernel(const __grid_constant__ VerifyAttentionParams p, const Partials partials) {
  extern __shared__ __align__(128) char shared[];
  // Larger ones are never launched on sm_120.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ < 1200
  run_segments<T, kRows, kStages, kF8>(p, partials, shared);
#else
  if constexpr (TileMemory<kRows, kStages, kF8>::kBytes <= kSmallSharedBytes)
    run_segments<T, kRows, kStages, kF8>(p, partials, shared);
#endif
}

template <typename T, int kRows, int kStages, bool kF8>
void launch_tiles(const VerifyAttentionParams& p, int n_ctas, Stream stream) {
  const Partials partials = partials_in(p, n_ctas, kLargestTile);
  launch(attention_kernel<T, kRows, kStages, kF8>,
         {.grid = {static_cast<unsigned>(n_ctas)},
          .block = {kTileThreads},
          .shared_bytes = TileMemory<kRows, kStages, kF8>::kBytes},
         stream, p, partials);
  launch_combine<kRows, kBlockKeys>(p, partials, n_ctas, stream);
}

template <typename T, bool kF8>
void launch_fitting(const VerifyAttentionParams& p, const Machine& machine, Stream stream) {
  // More rows a tile read each key less often; with few rows they would be padding, and where there
  // is little to do, smaller tiles give more of the device something.
  const int64_t rows = static_cast<int64_t>(p.rows.n_rows) * p.n_heads / p.rows.n_requests;
  const int64_t n_keys = static_cast<int64_t>(p.rows.max_blocks) * kPageTokens;
  const int64_t n_units = ceil_div(rows, 64) * p.rows.n_requests * n_keys / device::kShortestKeys;
  const bool many = rows > 32 && n_units >= machine.n_ctas;
  const auto fits = [&](int bytes) { return bytes <= machine.shared_bytes; };
  constexpr int kMost = kF8 ? 5 : 3, kSome = kF8 ? 8 : 4, kFew = kF8 ? 8 : 5, kLeast = kF8 ? 3 : 2;
  if (rows <= 16 && fits(TileMemory<16, kFew, kF8>::kBytes))
    launch_tiles<T, 16, kFew, kF8>(p, machine.n_ctas, stream);
  else if (many && fits(TileMemory<64, kMost, kF8>::kBytes))
    launch_tiles<T, 64, kMost, kF8>(p, machine.n_ctas, stream);
  else if (fits(TileMemory<32, kSome, kF8>::kBytes))
    launch_tiles<T, 32, kSome, kF8>(p, machine.n_ctas, stream);
  else
    launch_tiles<T, 32, kLeast, kF8>(p, machine.n_ctas, stream);
}

constexpr int kLeastBytes =
    std::max(TileMemory<32, 2, false>::kBytes, TileMemory<32, 3, true>::kBytes);
static_assert(kLeastBytes <= kSmallSharedBytes);

}  // namespace

bool mma_supports(const VerifyAttentionParams& p, const Machine& machine) {
  const bool same = p.q_dtype == p.kv_dtype && p.q_dtype != DType::kF32;
  const bool f8 = p.q_dtype == DType::kBF16 && p.kv_dtype == DType::kF8E4M3;
  return (same || f8) && p.latent_dim == kLatent && p.rope_dim == kRope &&
         p.rows.n_requests <= device::kMaxScheduled && machine.shared_bytes >= kLeastBytes &&
         rows_aligned(p);
}

size_t mma_workspace(const VerifyAttentionParams& p, const Machine& machine) {
  return partials_bytes(p, machine.n_ctas, kLargestTile);
}

void mma_attention(const VerifyAttentionParams& p, const Machine& machine, Stream stream) {
  if (p.kv_dtype == DType::kF8E4M3)
    launch_fitting<__half, true>(p, machine, stream);
  else if (p.kv_dtype == DType::kBF16)
    launch_fitting<__nv_bfloat16, false>(p, machine, stream);
  else
    launch_fitting<__half, false>(p, machine, stream);
}

}  // namespace kdt::cuda
