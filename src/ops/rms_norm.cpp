#include "ops/rms_norm.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const RmsNormParams&) {}

void rms_norm(const Backend& backend, const RmsNormParams& p, Stream stream) {
  check(p);
  backend.rms_norm(p, stream);
}

}  // namespace kdt
