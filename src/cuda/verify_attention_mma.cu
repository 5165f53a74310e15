// Tree-verify attention with mma.sync (sm_80 and up): the kernel and the choice of its tile.
#include <algorithm>

#include "base/rounding.h"
#include "cuda/verify_attention.h"
#include "cuda/verify_attention_tile.cuh"

namespace kdt::cuda {
namespace {

constexpr int kLargestTile = 64;

template <typename T, int kRows, int kStages, bool kF8>
__global__ void __launch_bounds__(kTileThreads, 1)
    attention_kernel(const __grid_constant__ VerifyAttentionParams p, const Partials partials) {
  extern __shared__ __align__(128) char shared[];
  using Memory = TileMemory<kRows, kStages, kF8>;
  using Schedule = device::Schedule<kRows, kBlockKeys>;
  auto& schedule = *reinterpret_cast<Schedule*>(shared + Memory::kSchedule);
  auto& state = *reinterpret_cast<TileState*>(shared + Memory::kState);
  const device::ScheduleParams sizes = schedule_params(p, gridDim.x);
  device::wait_for_previous();
  device::let_next_start();
  schedule.build(sizes);
  device::Cursor cursor = {static_cast<int>(blockIdx.x)};
  for (device::Segment segment; schedule.next(sizes, cursor, segment);) {
    if (threadIdx.x == 0) {
      state.segment = segment;
      state.cursor = cursor;
    }
    SegmentRun<T, kRows, kStages, kF8>(p, shared, segment).run(partials);
    cursor = state.cursor;
    __syncthreads();
  }
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
