#include "ops/moe.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"
#include "tests/ops/weights.h"

namespace kdt::test {
namespace {

TEST(MoeRoute, Golden) {
  for (const Golden& g : golden_bundles("moe_route")) {
    SCOPED_TRACE(g.label());
    const auto logits = g.floats("logits");
    const auto bias = g.has("bias") ? g.floats("bias") : std::vector<float>();
    const auto want_ids = g.get<int32_t>("ids");
    const auto want_weights = g.floats("weights");
    std::vector<int32_t> ids(want_ids.size(), -7);
    std::vector<float> weights(want_ids.size(), kPoison);
    moe_route(cpu_backend(), {.logits = logits.data(),
                              .bias = bias.empty() ? nullptr : bias.data(),
                              .ids = ids.data(),
                              .weights = weights.data(),
                              .n_rows = static_cast<int32_t>(g.shape("logits")[0]),
                              .n_experts = static_cast<int32_t>(g.shape("logits")[1]),
                              .n_selected = g.scalar<int32_t>("n_selected"),
                              .n_group = g.scalar<int32_t>("n_group"),
                              .topk_group = g.scalar<int32_t>("topk_group"),
                              .scaling_factor = g.scalar<float>("scaling_factor"),
                              .normalize = g.flag("normalize")});
    EXPECT_EQ(ids, want_ids);
    EXPECT_LE(relative_error(weights.data(), want_weights.data(), weights.size()),
              tolerance(DType::kF32, 8));
  }
}

// The header's definition, one step at a time, on whole arrays.
void route_by_definition(const MoeRouteParams& p, int row, std::vector<int32_t>* ids,
                         std::vector<double>* weights) {
  std::vector<double> s(p.n_experts), choice(p.n_experts);
  for (int e = 0; e < p.n_experts; ++e) {
    s[e] = 1.0 / (1.0 + std::exp(-double{p.logits[row * p.n_experts + e]}));
    choice[e] = s[e] + p.bias[e];
  }
  const int size = p.n_experts / p.n_group;
  std::vector<double> score(p.n_group);
  for (int g = 0; g < p.n_group; ++g) {
    std::vector<double> of_group(choice.begin() + g * size, choice.begin() + (g + 1) * size);
    std::sort(of_group.rbegin(), of_group.rend());
    score[g] = of_group[0] + (size > 1 ? of_group[1] : 0.0);
  }
  const auto ranked = [](const std::vector<double>& values) {
    std::vector<int32_t> order(values.size());
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(),
                     [&](int32_t a, int32_t b) { return values[a] > values[b]; });
    return order;
  };
  const std::vector<int32_t> groups = ranked(score);
  for (int i = p.topk_group; i < p.n_group; ++i) {
    for (int e = groups[i] * size; e < (groups[i] + 1) * size; ++e) choice[e] = -INFINITY;
  }
  const std::vector<int32_t> experts = ranked(choice);
  ids->assign(experts.begin(), experts.begin() + p.n_selected);
  double total = 1e-20;
  for (int32_t e : *ids) total += s[e];
  weights->clear();
  for (int32_t e : *ids) weights->push_back(s[e] / (p.normalize ? total : 1.0) * p.scaling_factor);
}

TEST(MoeRoute, MatchesTheDefinitionWithTies) {
  struct Case {
    int rows, experts, selected, groups, best_groups;
    bool normalize, coarse;
  };
  const Case cases[] = {{40, 16, 4, 1, 1, true, false},  {40, 64, 6, 8, 3, true, true},
                        {40, 256, 8, 8, 4, true, false}, {40, 24, 24, 1, 1, false, true},
                        {40, 12, 5, 12, 5, true, true},  {40, 32, 20, 4, 2, true, true},
                        {1, 1, 1, 1, 1, true, false},    {5, 1024, 32, 1, 1, true, true}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.experts);
    Random random(c.experts);
    auto logits = random.normals(c.rows * c.experts, 2.0f), bias = random.normals(c.experts, 0.1f);
    if (c.coarse) {  // many equal choices
      for (float& v : logits) v = std::round(v);
      for (float& v : bias) v = std::round(v * 4) / 4;
    }
    std::vector<int32_t> ids(c.rows * c.selected, -7);
    std::vector<float> weights(ids.size(), kPoison);
    const MoeRouteParams p = {.logits = logits.data(),
                              .bias = bias.data(),
                              .ids = ids.data(),
                              .weights = weights.data(),
                              .n_rows = c.rows,
                              .n_experts = c.experts,
                              .n_selected = c.selected,
                              .n_group = c.groups,
                              .topk_group = c.best_groups,
                              .scaling_factor = 2.5f,
                              .normalize = c.normalize};
    moe_route(cpu_backend(), p);
    for (int m = 0; m < c.rows; ++m) {
      std::vector<int32_t> want_ids;
      std::vector<double> want;
      route_by_definition(p, m, &want_ids, &want);
      const auto first = ids.begin() + m * c.selected;
      ASSERT_EQ(std::vector<int32_t>(first, first + c.selected), want_ids) << "row " << m;
      ASSERT_LE(relative_error(&weights[m * c.selected], want.data(), want.size()),
                tolerance(DType::kF32, 1));
    }
  }
}

TEST(MoeRoute, NanIsSelectedAndSeen) {
  std::vector<float> logits = {1.0f, kPoison, 2.0f, 0.0f};
  int32_t ids[2];
  float weights[2];
  moe_route(cpu_backend(), {.logits = logits.data(),
                            .ids = ids,
                            .weights = weights,
                            .n_rows = 1,
                            .n_experts = 4,
                            .n_selected = 2});
  EXPECT_EQ(ids[0], 1);
  EXPECT_EQ(ids[1], 2);
  EXPECT_TRUE(std::isnan(weights[0]) && std::isnan(weights[1]));
}

TEST(MoeRoute, RefusesBadArguments) {
  std::vector<float> logits(2 * 12);
  int32_t ids[8];
  float weights[8];
  const auto refuse = [&](const std::string& part, auto change) {
    MoeRouteParams p = {.logits = logits.data(),
                        .ids = ids,
                        .weights = weights,
                        .n_rows = 2,
                        .n_experts = 12,
                        .n_selected = 4,
                        .n_group = 3,
                        .topk_group = 2};
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "moe_route: " + part,
                 [&] { moe_route(cpu_backend(), p); });
  };
  refuse("logits is null", [](MoeRouteParams& p) { p.logits = nullptr; });
  refuse("ids is null", [](MoeRouteParams& p) { p.ids = nullptr; });
  refuse("weights is null", [](MoeRouteParams& p) { p.weights = nullptr; });
  refuse("n_rows is -1", [](MoeRouteParams& p) { p.n_rows = -1; });
  refuse("n_experts is 1025, expected 1..1024", [](MoeRouteParams& p) { p.n_experts = 1025; });
  refuse("n_selected is 13", [](MoeRouteParams& p) { p.n_selected = 13; });
  refuse("n_selected is 0", [](MoeRouteParams& p) { p.n_selected = 0; });
  refuse("n_group is 5", [](MoeRouteParams& p) { p.n_group = 5; });
  refuse("n_group is 0", [](MoeRouteParams& p) { p.n_group = 0; });
  refuse("topk_group is 4", [](MoeRouteParams& p) { p.topk_group = 4; });
  moe_route(cpu_backend(), {.n_rows = 0, .n_experts = 4, .n_selected = 2});
}

struct Experts {
  Experts(WeightFormat format, int n, int hidden, int intermediate, uint64_t seed)
      : gate(cpu_backend(), format, n, intermediate, hidden, seed, DType::kBF16, 8, 48),
        up(cpu_backend(), format, n, intermediate, hidden, seed + 100, DType::kBF16, 8, 48),
        down(cpu_backend(), format, n, hidden, intermediate, seed + 200, DType::kBF16, 8, 48) {}
  PackedWeight gate, up, down;
};

std::vector<double> times(const RandomWeight& w, const std::vector<double>& x) {
  std::vector<double> y(w.source.out_features);
  for (int64_t i = 0; i < w.source.out_features; ++i) {
    for (int64_t k = 0; k < w.source.in_features; ++k) y[i] += x[k] * w.at(i, k);
  }
  return y;
}

// Row m of the definition, in float64.
std::vector<double> experts_by_definition(const MoeExpertsParams& p, const Experts& e, int64_t m,
                                          const float* y_before) {
  const int64_t hidden = p.gate->in_features;
  const std::vector<double> x(p.x + m * hidden, p.x + (m + 1) * hidden);
  std::vector<double> y(y_before, y_before + hidden);
  for (int64_t j = 0; j < p.n_selected; ++j) {
    const int64_t pair = m * p.n_selected + j;
    std::vector<double> h = times(e.gate.sources[p.ids[pair]], x);
    const std::vector<double> up = times(e.up.sources[p.ids[pair]], x);
    for (size_t i = 0; i < h.size(); ++i) h[i] = h[i] / (1.0 + std::exp(-h[i])) * up[i];
    const std::vector<double> out = times(e.down.sources[p.ids[pair]], h);
    for (int64_t i = 0; i < hidden; ++i) y[i] += p.weights[pair] * out[i];
  }
  return y;
}

// Runs with a poisoned workspace of exactly the size asked for.
void run(MoeExpertsParams p) {
  Scratch scratch(cpu_backend(), moe_experts_workspace(cpu_backend(), p));
  p.workspace = scratch.workspace();
  moe_experts(cpu_backend(), p);
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

Routing random_routing(int rows, int selected, int experts, Random* random) {
  Routing r;
  std::vector<int32_t> order(experts);
  std::iota(order.begin(), order.end(), 0);
  for (int m = 0; m < rows; ++m) {
    for (int i = 0; i < selected; ++i) std::swap(order[i], order[random->integer(i, experts - 1)]);
    r.ids.insert(r.ids.end(), order.begin(), order.begin() + selected);
  }
  r.weights = random->normals(rows * selected);
  return r;
}

void expect_definition(const Experts& e, int rows, int selected, const Routing& routing,
                       uint64_t seed) {
  Random random(seed);
  const int64_t hidden = e.gate.packed.in_features;
  const auto x = random.normals(rows * hidden), before = random.normals(rows * hidden);
  std::vector<float> y = before;
  const MoeExpertsParams p = {.x = x.data(),
                              .ids = routing.ids.data(),
                              .weights = routing.weights.data(),
                              .gate = &e.gate.packed,
                              .up = &e.up.packed,
                              .down = &e.down.packed,
                              .y = y.data(),
                              .n_rows = rows,
                              .n_selected = selected};
  run(p);
  for (int64_t m = 0; m < rows; ++m) {
    const auto want = experts_by_definition(p, e, m, &before[m * hidden]);
    ASSERT_LE(relative_error(&y[m * hidden], want.data(), hidden),
              tolerance(DType::kF32, static_cast<double>(hidden + p.gate->out_features)))
        << "row " << m;
    MoeExpertsParams one = p;  // the same bits alone
    std::vector<float> alone(before.begin() + m * hidden, before.begin() + (m + 1) * hidden);
    one.x += m * hidden, one.ids += m * selected, one.weights += m * selected;
    one.y = alone.data(), one.n_rows = 1;
    run(one);
    ASSERT_TRUE(std::equal(alone.begin(), alone.end(), &y[m * hidden])) << "row " << m;
  }
}

TEST(MoeExperts, EveryFormatMatchesTheDefinition) {
  for (WeightFormat format : kAllFormats) {
    SCOPED_TRACE(static_cast<int>(format));
    const Experts e(format, 6, 72, 40, 1);
    for (int rows : {1, 2, 7, 33}) {
      Random random(rows);
      for (int selected : {1, 3, 6}) {
        expect_definition(e, rows, selected, random_routing(rows, selected, 6, &random), rows);
      }
    }
  }
}

TEST(MoeExperts, OneExpertTakesAllAndOthersNone) {
  const Experts e(WeightFormat::kBF16, 5, 48, 24, 2);
  const int rows = 210;  // more than one block of rows
  Routing routing;
  for (int m = 0; m < rows; ++m) {
    routing.ids.push_back(3);
    routing.weights.push_back(0.5f + static_cast<float>(m % 7));
  }
  expect_definition(e, rows, 1, routing, 3);
}

TEST(MoeExperts, Golden) {
  for (const Golden& g : golden_bundles("moe_experts")) {
    SCOPED_TRACE(g.label());
    std::vector<std::vector<uint16_t>> codes;
    const auto pack = [&](const std::string& name) {
      const auto shape = g.shape(name);
      std::vector<uint16_t>& c = codes.emplace_back();
      for (float v : g.floats(name)) c.push_back(f32_to_bf16(v));
      std::vector<LinearSource> sources;
      for (int64_t i = 0; i < shape[0]; ++i) {
        sources.push_back({.format = WeightFormat::kBF16,
                           .out_features = shape[1],
                           .in_features = shape[2],
                           .data = c.data() + i * shape[1] * shape[2]});
      }
      return pack_linear(cpu_backend(), sources);
    };
    const LinearWeight gate = pack("gate"), up = pack("up"), down = pack("down");
    const auto x = g.floats("x"), weights = g.floats("weights"), want = g.floats("y_after");
    const auto ids = g.get<int32_t>("ids");
    std::vector<float> y = g.floats("y");
    run({.x = x.data(),
         .ids = ids.data(),
         .weights = weights.data(),
         .gate = &gate,
         .up = &up,
         .down = &down,
         .y = y.data(),
         .n_rows = static_cast<int32_t>(g.shape("ids")[0]),
         .n_selected = static_cast<int32_t>(g.shape("ids")[1])});
    EXPECT_LE(relative_error(y.data(), want.data(), y.size()), tolerance(DType::kF32, 64 + 32));
    for (const LinearWeight& w : {gate, up, down}) cpu_backend().deallocate(w.data, w.bytes);
  }
}

TEST(MoeExperts, RefusesBadArguments) {
  const Experts e(WeightFormat::kF32, 4, 16, 24, 5), other(WeightFormat::kF32, 3, 24, 16, 6);
  std::vector<float> x(2 * 16), y(2 * 16), weights(4);
  std::vector<int32_t> ids = {0, 1, 2, 4};
  Scratch scratch(cpu_backend(), 1 << 16);
  const auto refuse = [&](const std::string& part, auto change) {
    MoeExpertsParams p = {.x = x.data(),
                          .ids = ids.data(),
                          .weights = weights.data(),
                          .gate = &e.gate.packed,
                          .up = &e.up.packed,
                          .down = &e.down.packed,
                          .y = y.data(),
                          .n_rows = 2,
                          .n_selected = 2,
                          .workspace = scratch.workspace()};
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "moe_experts: " + part,
                 [&] { moe_experts(cpu_backend(), p); });
  };
  refuse("ids[1, 1] is 4, expected 0..3", [](MoeExpertsParams&) {});
  ids[3] = -1;
  refuse("ids[1, 1] is -1, expected 0..3", [](MoeExpertsParams&) {});
  ids[3] = 3;
  refuse("x is null", [](MoeExpertsParams& p) { p.x = nullptr; });
  refuse("ids is null", [](MoeExpertsParams& p) { p.ids = nullptr; });
  refuse("weights is null", [](MoeExpertsParams& p) { p.weights = nullptr; });
  refuse("gate is null", [](MoeExpertsParams& p) { p.gate = nullptr; });
  refuse("y is null", [](MoeExpertsParams& p) { p.y = nullptr; });
  refuse("n_rows is -1", [](MoeExpertsParams& p) { p.n_rows = -1; });
  refuse("n_rows is 2147483647", [](MoeExpertsParams& p) { p.n_rows = INT32_MAX; });
  refuse("n_selected is 5", [](MoeExpertsParams& p) { p.n_selected = 5; });
  refuse("up.n_groups is 3", [&](MoeExpertsParams& p) { p.up = &other.up.packed; });
  refuse("down.in_features is 16", [&](MoeExpertsParams& p) { p.down = &e.gate.packed; });
  refuse("workspace.bytes is 100", [](MoeExpertsParams& p) { p.workspace.bytes = 100; });
  refuse("workspace.data is 0x",
         [](MoeExpertsParams& p) { p.workspace.data = static_cast<char*>(p.workspace.data) + 8; });
}

TEST(MoeExperts, NoRowsIsNoWork) {
  const Experts e(WeightFormat::kF32, 2, 16, 16, 7);
  const MoeExpertsParams no_rows = {.gate = &e.gate.packed,
                                    .up = &e.up.packed,
                                    .down = &e.down.packed,
                                    .n_rows = 0,
                                    .n_selected = 1};
  EXPECT_NO_THROW(run(no_rows));
}

}  // namespace
}  // namespace kdt::test
