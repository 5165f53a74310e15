#include "ops/lse_merge.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const LseMergeParams&) {}

void lse_merge(const Backend& backend, const LseMergeParams& p, Stream stream) {
  check(p);
  backend.lse_merge(p, stream);
}

}  // namespace kdt
