#include "ops/draft_topk.h"

#include <limits>

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "draft_topk";
constexpr const char* kMerge = "draft_topk_merge";
}  // namespace

void check(const DraftTopkParams& p) {
  require(p.batch >= 0, kOp, "batch", p.batch, "0 or more");
  require(p.depth >= 0, kOp, "depth", p.depth, "0 or more");
  require(p.vocab >= 1, kOp, "vocab", p.vocab, "1 or more");
  require(p.k >= 1 && p.k <= 1024, kOp, "k", p.k, "1..1024");
  require_float(kOp, "dtype", p.dtype);
  require(p.first_id >= 0 && p.first_id <= std::numeric_limits<int32_t>::max() - p.vocab, kOp,
          "first_id", p.first_id, "ids that fit 32 bits ({} columns)", p.vocab);
  require(p.row_stride >= p.vocab, kOp, "row_stride", p.row_stride, "at least {} (vocab)", p.vocab);
  if (p.batch == 0) return;
  require_pointer(kOp, "status", p.status);
  if (p.depth == 0) return;
  require_pointer(kOp, "logits", p.logits);
  require_pointer(kOp, "logp", p.logp);
  require_pointer(kOp, "ids", p.ids);
  if (p.shard) require_pointer(kOp, "log_z", p.log_z);
}

size_t draft_topk_workspace(const Backend& backend, const DraftTopkParams& largest) {
  return implemented(backend, &Backend::draft_topk_workspace, kOp)(largest);
}

void draft_topk(const Backend& backend, const DraftTopkParams& p, Stream stream) {
  check(p);
  require_workspace(kOp, p.workspace, implemented(backend, &Backend::draft_topk_workspace, kOp)(p));
  implemented(backend, &Backend::draft_topk, kOp)(p, stream);
}

void check(const DraftTopkMergeParams& p) {
  require(p.n_shards >= 1 && p.n_shards <= 1024, kMerge, "n_shards", p.n_shards, "1..1024");
  require(p.batch >= 0, kMerge, "batch", p.batch, "0 or more");
  require(p.depth >= 0, kMerge, "depth", p.depth, "0 or more");
  require(p.k >= 1 && p.k <= 1024, kMerge, "k", p.k, "1..1024");
  if (p.batch == 0) return;
  require_pointer(kMerge, "shard_status", p.shard_status);
  require_pointer(kMerge, "status", p.status);
  if (p.depth == 0) return;
  require_pointer(kMerge, "shard_logits", p.shard_logits);
  require_pointer(kMerge, "shard_ids", p.shard_ids);
  require_pointer(kMerge, "shard_log_z", p.shard_log_z);
  require_pointer(kMerge, "logp", p.logp);
  require_pointer(kMerge, "ids", p.ids);
}

void draft_topk_merge(const Backend& backend, const DraftTopkMergeParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::draft_topk_merge, kMerge)(p, stream);
}

}  // namespace kdt
