#include "ops/silu_mul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

double definition(float gate, float up) {
  return gate / (1.0 + std::exp(-double{gate})) * up;
}

TEST(SiluMul, Golden) {
  for (const Golden& g : golden_bundles("silu_mul")) {
    SCOPED_TRACE(g.label());
    const auto gate = g.floats("gate"), up = g.floats("up"), want = g.floats("y");
    std::vector<float> y(gate.size(), kPoison);
    silu_mul(
        cpu_backend(),
        {.gate = gate.data(), .up = up.data(), .y = y.data(), .n = static_cast<int64_t>(y.size())});
    EXPECT_LE(relative_error(y.data(), want.data(), y.size()), tolerance(DType::kF32, 1));
  }
}

TEST(SiluMul, EveryElementMatchesDoubleWhereverItLies) {
  Random random(1);
  for (int64_t n : {1, 15, 16, 17, 1000, 50001}) {
    const auto gate = random.normals(n, 12.0f), up = random.normals(n);
    std::vector<float> y(n, kPoison), over_gate = gate, over_up = up;
    silu_mul(cpu_backend(), {.gate = gate.data(), .up = up.data(), .y = y.data(), .n = n});
    for (int64_t i = 0; i < n; ++i) {
      const double want = definition(gate[i], up[i]);
      ASSERT_NEAR(y[i], want, 4e-7 * std::fabs(want)) << gate[i] << " " << up[i];
    }
    silu_mul(cpu_backend(),
             {.gate = over_gate.data(), .up = up.data(), .y = over_gate.data(), .n = n});
    silu_mul(cpu_backend(),
             {.gate = gate.data(), .up = over_up.data(), .y = over_up.data(), .n = n});
    EXPECT_EQ(over_gate, y);
    EXPECT_EQ(over_up, y);
    float last = kPoison;
    silu_mul(cpu_backend(), {.gate = &gate[n - 1], .up = &up[n - 1], .y = &last, .n = 1});
    EXPECT_EQ(last, y[n - 1]);
  }
}

TEST(SiluMul, Extremes) {
  const float gate[] = {-200.0f, 200.0f, 0.0f, -90.0f, kPoison};
  const float up[] = {1.0f, 2.0f, 3.0f, 1.0f, 1.0f};
  float y[5];
  silu_mul(cpu_backend(), {.gate = gate, .up = up, .y = y, .n = 5});
  EXPECT_EQ(y[0], 0.0f);
  EXPECT_EQ(y[1], 400.0f);
  EXPECT_EQ(y[2], 0.0f);
  EXPECT_NEAR(y[3], definition(-90.0f, 1.0f), 1e-37);  // exp(90) is inf in fp32
  EXPECT_TRUE(std::isnan(y[4]));
}

TEST(SiluMul, RefusesBadArguments) {
  std::vector<float> x(8);
  const auto refuse = [&](const std::string& part, auto change) {
    SiluMulParams p = {.gate = x.data(), .up = x.data(), .y = x.data(), .n = 8};
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "silu_mul: " + part,
                 [&] { silu_mul(cpu_backend(), p); });
  };
  refuse("gate is null", [](SiluMulParams& p) { p.gate = nullptr; });
  refuse("up is null", [](SiluMulParams& p) { p.up = nullptr; });
  refuse("y is null", [](SiluMulParams& p) { p.y = nullptr; });
  refuse("n is -1", [](SiluMulParams& p) { p.n = -1; });
  silu_mul(cpu_backend(), {.n = 0});
}

}  // namespace
}  // namespace kdt::test
