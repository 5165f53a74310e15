#include "ops/backend.h"

#include "cuda/check.h"
#include "cuda/ops.h"

namespace kdt {
namespace {

bool device_present() {
  int count = 0;
  const bool present = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  if (!present) cudaGetLastError();
  return present;
}

constexpr Backend kBackend = {
    .name = "cuda",
    .allocate = cuda::allocate,
    .deallocate = cuda::deallocate,
    .copy_in = cuda::copy_in,
    .copy_out = cuda::copy_out,
    .copy = cuda::copy,
    .synchronize = cuda::synchronize,
    .describe = cuda::describe,
    .capture = cuda::capture,
    .time_cold = cuda::time_cold,
    .embedding = cuda::embedding,
    .verify_attention_workspace = cuda::verify_attention_workspace,
    .verify_attention_plan = cuda::verify_attention_plan,
    .verify_attention = cuda::verify_attention,
    .lse_merge = cuda::lse_merge,
    .draft_topk_workspace = cuda::draft_topk_workspace,
    .draft_topk = cuda::draft_topk,
    .draft_topk_merge = cuda::draft_topk_merge,
    .tree_build_workspace = cuda::tree_build_workspace,
    .tree_build = cuda::tree_build,
    .tree_accept_workspace = cuda::tree_accept_workspace,
    .tree_accept = cuda::tree_accept,
    .kv_commit = cuda::kv_commit,
    .next_round = cuda::next_round,
};

}  // namespace

const Backend* cuda_backend() {
  static const bool present = device_present();
  return present ? &kBackend : nullptr;
}

}  // namespace kdt
