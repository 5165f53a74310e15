#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "cpu/ops.h"
#include "cpu/parallel.h"

namespace kdt::cpu {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// The `n` best of values[0 .. size): descending, ties to the lower index. No value is NaN.
void best(const double* values, int size, int n, int32_t* order) {
  std::iota(order, order + size, 0);
  std::partial_sort(order, order + n, order + size, [&](int32_t a, int32_t b) {
    return values[a] > values[b] || (values[a] == values[b] && a < b);
  });
}

// Experts outside the best groups get choice -inf.
void keep_best_groups(const MoeRouteParams& p, double* choice) {
  const int size = p.n_experts / p.n_group;
  double score[kMaxExperts];
  int32_t order[kMaxExperts];
  for (int g = 0; g < p.n_group; ++g) {
    double first = -kInfinity, second = -kInfinity;
    for (int e = g * size; e < (g + 1) * size; ++e) {
      second = std::max(second, std::min(first, choice[e]));
      first = std::max(first, choice[e]);
    }
    score[g] = size == 1 ? first : first + second;
  }
  best(score, p.n_group, p.topk_group, order);
  for (int i = p.topk_group; i < p.n_group; ++i) {
    std::fill_n(choice + order[i] * size, size, -kInfinity);
  }
}

// In float64, as the reference: routing decides which numbers are computed at all.
void route_row(const MoeRouteParams& p, const float* logits, int32_t* ids, float* weights) {
  double score[kMaxExperts], choice[kMaxExperts];
  int32_t order[kMaxExperts];
  for (int e = 0; e < p.n_experts; ++e) {
    score[e] = 1.0 / (1.0 + std::exp(-static_cast<double>(logits[e])));
    choice[e] = score[e] + (p.bias ? p.bias[e] : 0.0f);
    if (std::isnan(choice[e])) choice[e] = kInfinity;  // selected, so that the row shows it
  }
  if (p.n_group > 1) keep_best_groups(p, choice);
  best(choice, p.n_experts, p.n_selected, order);
  double total = 0.0;
  for (int j = 0; j < p.n_selected; ++j) total += score[order[j]];
  const double divisor = p.normalize ? total + 1e-20 : 1.0;
  for (int j = 0; j < p.n_selected; ++j) {
    ids[j] = order[j];
    weights[j] = static_cast<float>(score[order[j]] / divisor * p.scaling_factor);
  }
}

}  // namespace

void moe_route(const MoeRouteParams& p, Stream) {
  parallel_for(p.n_rows, int64_t{p.n_rows} * p.n_experts > 2000, [&](int64_t m) {
    route_row(p, p.logits + m * p.n_experts, p.ids + m * p.n_selected,
              p.weights + m * p.n_selected);
  });
}

}  // namespace kdt::cpu
