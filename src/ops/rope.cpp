#include "ops/rope.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const RopeParams&) {}

void rope(const Backend& backend, const RopeParams& p, Stream stream) {
  check(p);
  backend.rope(p, stream);
}

}  // namespace kdt
