#include "ops/kv_commit.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const KvCommitParams&) {}

void kv_commit(const Backend& backend, const KvCommitParams& p, Stream stream) {
  check(p);
  backend.kv_commit(p, stream);
}

}  // namespace kdt
