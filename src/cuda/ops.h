// The CUDA backend's functions, one per entry of the backend table. Arguments are checked already
// (src/ops); every array is in device memory. A call enqueues its kernels on the stream and
// returns: it allocates nothing, waits for nothing and reads no device value, so it can be
// captured.
#pragma once

#include "ops/backend.h"

namespace kdt::cuda {

void* allocate(size_t bytes);
void* allocate_unwritten(size_t bytes);  // holds what the memory held; for tests
void deallocate(void* data, size_t bytes);
void copy_in(void* device, const void* host, size_t bytes, Stream stream);
void copy_out(void* host, const void* device, size_t bytes, Stream stream);
void copy(void* to, const void* from, size_t bytes, Stream stream);
void synchronize(Stream stream);
std::string describe();
std::function<void(Stream)> capture(const std::function<void(Stream)>& call);
double time_cold(const std::function<void(Stream)>& call, int n_warmups, int n_repeats);

void embedding(const EmbeddingParams& p, Stream stream);
size_t verify_attention_workspace(const VerifyAttentionParams& largest);
void verify_attention_plan(const VerifyAttentionParams& p, Stream stream);
void verify_attention(const VerifyAttentionParams& p, Stream stream);
void lse_merge(const LseMergeParams& p, Stream stream);
size_t draft_topk_workspace(const DraftTopkParams& largest);
void draft_topk(const DraftTopkParams& p, Stream stream);
void draft_topk_merge(const DraftTopkMergeParams& p, Stream stream);
size_t tree_build_workspace(const TreeBuildParams& largest);
void tree_build(const TreeBuildParams& p, Stream stream);
size_t tree_accept_workspace(const TreeAcceptParams& largest);
void tree_accept(const TreeAcceptParams& p, Stream stream);
void kv_commit(const KvCommitParams& p, Stream stream);
void next_round(const NextRoundParams& p, Stream stream);

}  // namespace kdt::cuda
