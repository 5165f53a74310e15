#include "ops/lse_merge.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "lse_merge";
}  // namespace

void check(const LseMergeParams& p) {
  require(p.n_rows >= 0, kOp, "n_rows", p.n_rows, "0 or more");
  require(p.dim >= 1, kOp, "dim", p.dim, "1 or more");
  if (p.n_rows == 0) return;
  require_pointer(kOp, "out_a", p.out_a);
  require_pointer(kOp, "lse_a", p.lse_a);
  require_pointer(kOp, "out_b", p.out_b);
  require_pointer(kOp, "lse_b", p.lse_b);
  require_pointer(kOp, "out", p.out);
  require_pointer(kOp, "lse", p.lse);
}

void lse_merge(const Backend& backend, const LseMergeParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::lse_merge, kOp)(p, stream);
}

}  // namespace kdt
