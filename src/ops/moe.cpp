#include "ops/moe.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {

constexpr const char* kRoute = "moe_route";
constexpr const char* kExperts = "moe_experts";

// What moe_experts_workspace needs; the pointers are not looked at.
void check_sizes(const MoeExpertsParams& p) {
  require_pointer(kExperts, "gate", p.gate);
  require_pointer(kExperts, "up", p.up);
  require_pointer(kExperts, "down", p.down);
  const LinearWeight &gate = *p.gate, &up = *p.up, &down = *p.down;
  require(gate.n_groups >= 1 && gate.n_groups <= kMaxExperts, kExperts, "gate.n_groups",
          gate.n_groups, "1..{} experts", kMaxExperts);
  require(up.n_groups == gate.n_groups, kExperts, "up.n_groups", up.n_groups, "{} (gate.n_groups)",
          gate.n_groups);
  require(down.n_groups == gate.n_groups, kExperts, "down.n_groups", down.n_groups,
          "{} (gate.n_groups)", gate.n_groups);
  require(up.out_features == gate.out_features, kExperts, "up.out_features", up.out_features,
          "{} (gate.out_features)", gate.out_features);
  require(up.in_features == gate.in_features, kExperts, "up.in_features", up.in_features,
          "{} (gate.in_features)", gate.in_features);
  require(down.in_features == gate.out_features, kExperts, "down.in_features", down.in_features,
          "{} (gate.out_features)", gate.out_features);
  require(down.out_features == gate.in_features, kExperts, "down.out_features", down.out_features,
          "{} (gate.in_features)", gate.in_features);
  require(p.n_selected >= 1 && p.n_selected <= gate.n_groups, kExperts, "n_selected", p.n_selected,
          "1..{} (experts)", gate.n_groups);
  const int32_t most_rows = INT32_MAX / p.n_selected;
  require(p.n_rows >= 0 && p.n_rows <= most_rows, kExperts, "n_rows", p.n_rows, "0..{}", most_rows);
}

}  // namespace

void check(const MoeRouteParams& p) {
  require(p.n_rows >= 0, kRoute, "n_rows", p.n_rows, "0 or more");
  require(p.n_experts >= 1 && p.n_experts <= kMaxExperts, kRoute, "n_experts", p.n_experts, "1..{}",
          kMaxExperts);
  require(p.n_selected >= 1 && p.n_selected <= p.n_experts, kRoute, "n_selected", p.n_selected,
          "1..{} (n_experts)", p.n_experts);
  require(p.n_group >= 1 && p.n_experts % p.n_group == 0, kRoute, "n_group", p.n_group,
          "a divisor of {} (n_experts)", p.n_experts);
  require(p.topk_group >= 1 && p.topk_group <= p.n_group, kRoute, "topk_group", p.topk_group,
          "1..{} (n_group)", p.n_group);
  if (p.n_rows == 0) return;
  require_pointer(kRoute, "logits", p.logits);
  require_pointer(kRoute, "ids", p.ids);
  require_pointer(kRoute, "weights", p.weights);
}

void moe_route(const Backend& backend, const MoeRouteParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::moe_route, kRoute)(p, stream);
}

void check(const MoeExpertsParams& p) {
  check_sizes(p);
  require_pointer(kExperts, "gate.data", p.gate->data);
  require_pointer(kExperts, "up.data", p.up->data);
  require_pointer(kExperts, "down.data", p.down->data);
  if (p.n_rows == 0) return;
  require_pointer(kExperts, "x", p.x);
  require_pointer(kExperts, "ids", p.ids);
  require_pointer(kExperts, "weights", p.weights);
  require_pointer(kExperts, "y", p.y);
}

size_t moe_experts_workspace(const Backend& backend, const MoeExpertsParams& largest) {
  check_sizes(largest);
  return implemented(backend, &Backend::moe_experts_workspace, kExperts)(largest);
}

void moe_experts(const Backend& backend, const MoeExpertsParams& p, Stream stream) {
  check(p);
  require_workspace(kExperts, p.workspace,
                    implemented(backend, &Backend::moe_experts_workspace, kExperts)(p));
  implemented(backend, &Backend::moe_experts, kExperts)(p, stream);
}

}  // namespace kdt
