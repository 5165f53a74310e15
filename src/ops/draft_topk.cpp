#include "ops/draft_topk.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "draft_topk";
}  // namespace

void check(const DraftTopkParams& p) {
  require(p.batch >= 0, kOp, "batch", p.batch, "0 or more");
  require(p.depth >= 0, kOp, "depth", p.depth, "0 or more");
  require(p.vocab >= 1, kOp, "vocab", p.vocab, "1 or more");
  require(p.k >= 1 && p.k <= 1024, kOp, "k", p.k, "1..1024");
  require_float(kOp, "dtype", p.dtype);
  require(p.row_stride >= p.vocab, kOp, "row_stride", p.row_stride, "at least {} (vocab)", p.vocab);
  if (p.batch == 0) return;
  require_pointer(kOp, "status", p.status);
  if (p.depth == 0) return;
  require_pointer(kOp, "logits", p.logits);
  require_pointer(kOp, "logp", p.logp);
  require_pointer(kOp, "ids", p.ids);
}

size_t draft_topk_workspace(const Backend& backend, const DraftTopkParams& largest) {
  return backend.draft_topk_workspace(largest);
}

void draft_topk(const Backend& backend, const DraftTopkParams& p, Stream stream) {
  check(p);
  require_workspace(kOp, p.workspace, backend.draft_topk_workspace(p));
  backend.draft_topk(p, stream);
}

}  // namespace kdt
