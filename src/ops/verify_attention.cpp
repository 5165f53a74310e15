#include "ops/verify_attention.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const VerifyAttentionParams&) {}

size_t verify_attention_workspace(const Backend& backend, const VerifyAttentionParams& largest) {
  return backend.verify_attention_workspace(largest);
}

void verify_attention(const Backend& backend, const VerifyAttentionParams& p, Stream stream) {
  check(p);
  backend.verify_attention(p, stream);
}

}  // namespace kdt
