#include "ops/silu_mul.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const SiluMulParams&) {}

void silu_mul(const Backend& backend, const SiluMulParams& p, Stream stream) {
  check(p);
  backend.silu_mul(p, stream);
}

}  // namespace kdt
