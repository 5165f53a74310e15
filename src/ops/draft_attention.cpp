#include "ops/draft_attention.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const DraftAttentionParams&) {}

size_t draft_attention_workspace(const Backend& backend, const DraftAttentionParams& largest) {
  return backend.draft_attention_workspace(largest);
}

void draft_attention(const Backend& backend, const DraftAttentionParams& p, Stream stream) {
  check(p);
  backend.draft_attention(p, stream);
}

}  // namespace kdt
