#include "ops/next_round.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "next_round";
}  // namespace

void check(const NextRoundParams& p) {
  require(p.batch >= 0, kOp, "batch", p.batch, "0 or more");
  require(p.depth >= 0 && p.depth <= kMaxDepth, kOp, "depth", p.depth, "0..{}", kMaxDepth);
  if (p.batch == 0) return;
  require_pointer(kOp, "n_accepted", p.n_accepted);
  require_pointer(kOp, "bonus", p.bonus);
  require_pointer(kOp, "max_len", p.max_len);
  require_pointer(kOp, "prefix_len", p.prefix_len);
  require_pointer(kOp, "root_token", p.root_token);
  require_pointer(kOp, "max_depth", p.max_depth);
}

void next_round(const Backend& backend, const NextRoundParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::next_round, kOp)(p, stream);
}

}  // namespace kdt
