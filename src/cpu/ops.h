// The CPU backend's functions, one per entry of the backend table. Arguments are checked already
// (src/ops); every call returns when its work is done.
#pragma once

#include "ops/backend.h"

namespace kdt::cpu {

void* allocate(size_t bytes);
void deallocate(void* data, size_t bytes);

LinearWeight pack_linear(std::span<const LinearSource> groups);
void linear(const LinearParams& p, Stream stream);
void embedding(const EmbeddingParams& p, Stream stream);
void rms_norm(const RmsNormParams& p, Stream stream);
void rope(const RopeParams& p, Stream stream);
void silu_mul(const SiluMulParams& p, Stream stream);
void moe_route(const MoeRouteParams& p, Stream stream);
size_t moe_experts_workspace(const MoeExpertsParams& largest);
void moe_experts(const MoeExpertsParams& p, Stream stream);
size_t verify_attention_workspace(const VerifyAttentionParams& largest);
void verify_attention(const VerifyAttentionParams& p, Stream stream);
size_t draft_attention_workspace(const DraftAttentionParams& largest);
void draft_attention(const DraftAttentionParams& p, Stream stream);
size_t tree_build_workspace(const TreeBuildParams& largest);
void tree_build(const TreeBuildParams& p, Stream stream);
size_t tree_accept_workspace(const TreeAcceptParams& largest);
void tree_accept(const TreeAcceptParams& p, Stream stream);
size_t draft_topk_workspace(const DraftTopkParams& largest);
void draft_topk(const DraftTopkParams& p, Stream stream);
void draft_topk_merge(const DraftTopkMergeParams& p, Stream stream);
void kv_commit(const KvCommitParams& p, Stream stream);
void next_round(const NextRoundParams& p, Stream stream);
void lse_merge(const LseMergeParams& p, Stream stream);

}  // namespace kdt::cpu
