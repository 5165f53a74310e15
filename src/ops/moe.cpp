#include "ops/moe.h"

#include "base/error.h"
#include "ops/backend.h"

namespace kdt {

void check(const MoeRouteParams&) {}

void moe_route(const Backend& backend, const MoeRouteParams& p, Stream stream) {
  check(p);
  backend.moe_route(p, stream);
}

void check(const MoeExpertsParams&) {}

size_t moe_experts_workspace(const Backend& backend, const MoeExpertsParams& largest) {
  return backend.moe_experts_workspace(largest);
}

void moe_experts(const Backend& backend, const MoeExpertsParams& p, Stream stream) {
  check(p);
  backend.moe_experts(p, stream);
}

}  // namespace kdt
