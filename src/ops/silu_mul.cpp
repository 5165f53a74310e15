#include "ops/silu_mul.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "silu_mul";
}  // namespace

void check(const SiluMulParams& p) {
  require(p.n >= 0, kOp, "n", p.n, "0 or more");
  if (p.n == 0) return;
  require_pointer(kOp, "gate", p.gate);
  require_pointer(kOp, "up", p.up);
  require_pointer(kOp, "y", p.y);
}

void silu_mul(const Backend& backend, const SiluMulParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::silu_mul, kOp)(p, stream);
}

}  // namespace kdt
