// Which implementation of verify_attention runs.
#include "cuda/verify_attention.h"

#include <algorithm>
#include <mutex>
#include <unordered_map>
#include <utility>

#include "base/error.h"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

Machine small_machine() {
  Machine machine = this_machine();
  machine.shared_bytes = std::min(machine.shared_bytes, kSmallSharedBytes);
  return machine;
}

bool has_work(const VerifyAttentionParams& p) {
  return p.rows.n_requests > 0 && p.rows.n_rows > 0 && p.n_heads > 0;
}

// The rows and heads that a workspace was last planned for. Entries stay.
std::mutex plans_mutex;
std::unordered_map<const void*, std::pair<RowBatch, int32_t>> plans;

// An implementation that was asked for by name takes every shape it can and refuses the others.
using Supports = bool (*)(const VerifyAttentionParams&, const Machine&);
using Attend = void (*)(const VerifyAttentionParams&, const Machine&, Stream);

void attend(const char* name, Supports supports, Attend attention, const VerifyAttentionParams& p,
            const Machine& machine, Stream stream) {
  if (!has_work(p)) return;
  if (!supports(p, machine))
    throw_error(ErrorCode::kUnsupported,
                "verify_attention: the {} implementation does not take q {}, KV {}, {} + {} "
                "dimensions, {} requests{} on this device",
                name, dtype_name(p.q_dtype), dtype_name(p.kv_dtype), p.latent_dim, p.rope_dim,
                p.rows.n_requests, rows_aligned(p) ? "" : ", arrays not aligned to 16 bytes");
  attention(p, machine, stream);
}

void simt(const VerifyAttentionParams& p, Stream stream) {
  attend("simt", simt_supports, simt_attention, p, this_machine(), stream);
}
void sm90(const VerifyAttentionParams& p, Stream stream) {
  attend("sm90", sm90_supports, sm90_attention, p, this_machine(), stream);
}
void mma(const VerifyAttentionParams& p, Stream stream) {
  attend("mma", mma_supports, mma_attention, p, this_machine(), stream);
}
void mma_small(const VerifyAttentionParams& p, Stream stream) {
  attend("mma_small", mma_supports, mma_attention, p, small_machine(), stream);
}

}  // namespace

Machine this_machine() {
  return {device_attribute(cudaDevAttrMultiProcessorCount),
          device_attribute(cudaDevAttrMaxSharedMemoryPerBlockOptin),
          device_attribute(cudaDevAttrComputeCapabilityMajor) == 9 &&
              device_attribute(cudaDevAttrComputeCapabilityMinor) == 0};
}

void note_plan(const VerifyAttentionParams& p) {
  const std::lock_guard lock(plans_mutex);
  plans[p.workspace.data] = {p.rows, p.n_heads};
}

void require_plan(const VerifyAttentionParams& p) {
  const std::lock_guard lock(plans_mutex);
  const auto found = plans.find(p.workspace.data);
  if (found == plans.end() || found->second != std::pair(p.rows, p.n_heads)) {
    throw_error(ErrorCode::kInvalidArgument,
                "verify_attention: the workspace has no plan for these rows of {} requests and {} "
                "heads; call verify_attention_plan with them first",
                p.rows.n_requests, p.n_heads);
  }
}

size_t verify_attention_workspace(const VerifyAttentionParams& largest) {
  if (!has_work(largest)) return 0;
  const Machine machine = this_machine();
  return std::max(mma_workspace(largest, machine), sm90_workspace(machine));
}

void verify_attention_plan(const VerifyAttentionParams& p, Stream stream) {
  const Machine machine = this_machine();
  if (has_work(p) && sm90_supports(p, machine)) sm90_plan(p, machine, stream);
}

void verify_attention(const VerifyAttentionParams& p, Stream stream) {
  if (!has_work(p)) return;
  const Machine machine = this_machine();
  if (sm90_supports(p, machine))
    sm90_attention(p, machine, stream);
  else if (mma_supports(p, machine))
    mma_attention(p, machine, stream);
  else
    simt(p, stream);
}

}  // namespace kdt::cuda

namespace kdt {

const Backend* cuda_backend_with_attention(std::string_view implementation) {
  if (!cuda_backend()) return nullptr;
  const auto with = [](void (*attention)(const VerifyAttentionParams&, Stream)) {
    Backend backend = *cuda_backend();
    backend.verify_attention = attention;
    return backend;
  };
  static const Backend simt = with(cuda::simt), mma = with(cuda::mma);
  static const Backend mma_small = with(cuda::mma_small), sm90 = with(cuda::sm90);
  if (implementation == "simt") return &simt;
  if (implementation == "mma") return &mma;
  if (implementation == "mma_small") return &mma_small;
  if (implementation == "sm90") return cuda::sm90_workspace(cuda::this_machine()) ? &sm90 : nullptr;
  return implementation.empty() ? cuda_backend() : nullptr;
}

}  // namespace kdt
