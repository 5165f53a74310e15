#include "ops/backend.h"

#include <cstring>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"

namespace kdt {
namespace cpu {
namespace {

void copy(void* to, const void* from, size_t bytes, Stream) {
  if (bytes) std::memmove(to, from, bytes);
}
void synchronize(Stream) {}

}  // namespace
}  // namespace cpu

const Backend& cpu_backend() {
  cpu::use_avx512();  // a wrong KDT_CPU_ISA throws here, not inside a parallel loop
  static constexpr Backend kBackend = {
      .name = "cpu",
      .allocate = cpu::allocate,
      .deallocate = cpu::deallocate,
      .copy_in = cpu::copy,
      .copy_out = cpu::copy,
      .copy = cpu::copy,
      .synchronize = cpu::synchronize,
      .pack_linear = cpu::pack_linear,
      .linear = cpu::linear,
      .embedding = cpu::embedding,
      .rms_norm = cpu::rms_norm,
      .rope = cpu::rope,
      .silu_mul = cpu::silu_mul,
      .moe_route = cpu::moe_route,
      .moe_experts_workspace = cpu::moe_experts_workspace,
      .moe_experts = cpu::moe_experts,
      .verify_attention_workspace = cpu::verify_attention_workspace,
      .verify_attention_plan = [](const VerifyAttentionParams&, Stream) {},
      .verify_attention = cpu::verify_attention,
      .lse_merge = cpu::lse_merge,
      .draft_attention_workspace = cpu::draft_attention_workspace,
      .draft_attention = cpu::draft_attention,
      .draft_topk_workspace = cpu::draft_topk_workspace,
      .draft_topk = cpu::draft_topk,
      .draft_topk_merge = cpu::draft_topk_merge,
      .tree_build_workspace = cpu::tree_build_workspace,
      .tree_build = cpu::tree_build,
      .tree_accept_workspace = cpu::tree_accept_workspace,
      .tree_accept = cpu::tree_accept,
      .kv_commit = cpu::kv_commit,
      .next_round = cpu::next_round,
  };
  return kBackend;
}

void set_cpu_threads(int threads) {
  cpu::thread_limit = threads;
}

}  // namespace kdt
