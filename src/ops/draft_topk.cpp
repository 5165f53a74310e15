#include "ops/draft_topk.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const DraftTopkParams&) {}

size_t draft_topk_workspace(const Backend& backend, const DraftTopkParams& largest) {
  return backend.draft_topk_workspace(largest);
}

void draft_topk(const Backend& backend, const DraftTopkParams& p, Stream stream) {
  check(p);
  backend.draft_topk(p, stream);
}

}  // namespace kdt
