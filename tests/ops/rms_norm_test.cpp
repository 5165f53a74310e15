#include "ops/rms_norm.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

TEST(RmsNorm, Golden) {
  for (const Golden& g : golden_bundles("rms_norm")) {
    SCOPED_TRACE(g.label());
    const std::vector<int64_t> shape = g.shape("x");
    const auto x = g.floats("x"), weight = g.floats("weight"), want = g.floats("y");
    std::vector<float> y(x.size(), kPoison);
    const int64_t stride = shape[1] * shape[2];
    rms_norm(cpu_backend(), {.x = x.data(),
                             .weight = weight.data(),
                             .y = y.data(),
                             .n_rows = static_cast<int32_t>(shape[0]),
                             .n_heads = static_cast<int32_t>(shape[1]),
                             .dim = static_cast<int32_t>(shape[2]),
                             .x_row_stride = stride,
                             .y_row_stride = stride,
                             .eps = g.scalar<float>("eps")});
    EXPECT_LE(relative_error(y.data(), want.data(), y.size()),
              tolerance(DType::kF32, static_cast<double>(shape[2])));
  }
}

struct Case {
  int rows, heads, dim, x_gap, y_gap;
  float scale;
};

TEST(RmsNorm, MatchesDoubleAndARowAlone) {
  const Case cases[] = {{1, 1, 1, 0, 0, 1.0f},     {3, 1, 15, 2, 1, 1.0f},
                        {5, 4, 16, 3, 0, 1e-3f},   {2, 2, 63, 0, 7, 1e4f},
                        {9, 1, 256, 64, 0, 1.0f},  {4, 3, 65, 1, 1, 30.0f},
                        {65, 1, 7168, 0, 0, 0.1f}, {2, 1, 100, 0, 0, 0.0f}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.dim);
    Random random(c.dim);
    const int64_t width = c.heads * c.dim, xs = width + c.x_gap, ys = width + c.y_gap;
    const auto x = random.normals(c.rows * xs, c.scale), weight = random.normals(c.dim);
    std::vector<float> y(c.rows * ys, kPoison), alone(width, kPoison);
    RmsNormParams p = {.x = x.data(),
                       .weight = weight.data(),
                       .y = y.data(),
                       .n_rows = c.rows,
                       .n_heads = c.heads,
                       .dim = c.dim,
                       .x_row_stride = xs,
                       .y_row_stride = ys};
    rms_norm(cpu_backend(), p);
    for (int64_t m = 0; m < c.rows; ++m) {
      std::vector<double> want(width);
      for (int64_t h = 0; h < c.heads; ++h) {
        const float* row = x.data() + m * xs + h * c.dim;
        double sum = 0;
        for (int i = 0; i < c.dim; ++i) sum += static_cast<double>(row[i]) * row[i];
        for (int i = 0; i < c.dim; ++i) {
          want[h * c.dim + i] = row[i] / std::sqrt(sum / c.dim + p.eps) * weight[i];
        }
      }
      ASSERT_LE(relative_error(y.data() + m * ys, want.data(), width),
                tolerance(DType::kF32, c.dim));
      for (int64_t i = width; i < ys; ++i) ASSERT_TRUE(std::isnan(y[m * ys + i]));
      RmsNormParams one = p;
      one.x = x.data() + m * xs, one.y = alone.data(), one.n_rows = 1;
      rms_norm(cpu_backend(), one);
      for (int64_t i = 0; i < width; ++i) ASSERT_EQ(alone[i], y[m * ys + i]) << m << " " << i;
    }
  }
}

TEST(RmsNorm, InPlace) {
  Random random(2);
  const auto x = random.normals(4 * 40), weight = random.normals(40);
  std::vector<float> y(x.size(), kPoison), in_place = x;
  RmsNormParams p = {.x = x.data(),
                     .weight = weight.data(),
                     .y = y.data(),
                     .n_rows = 4,
                     .dim = 40,
                     .x_row_stride = 40,
                     .y_row_stride = 40};
  rms_norm(cpu_backend(), p);
  p.x = p.y = in_place.data();
  rms_norm(cpu_backend(), p);
  EXPECT_EQ(in_place, y);
}

TEST(RmsNorm, AnOverflowingRowIsNotZeros) {
  const std::vector<float> x(20, 3e38f), weight(20, 1.0f);
  std::vector<float> y(20, kPoison);
  rms_norm(cpu_backend(), {.x = x.data(),
                           .weight = weight.data(),
                           .y = y.data(),
                           .n_rows = 1,
                           .dim = 20,
                           .x_row_stride = 20,
                           .y_row_stride = 20});
  for (const float value : y) EXPECT_TRUE(std::isnan(value));
}

TEST(RmsNorm, RefusesBadArguments) {
  std::vector<float> x(2 * 24), weight(8);
  const auto refuse = [&](const std::string& part, auto change) {
    RmsNormParams p = {.x = x.data(),
                       .weight = weight.data(),
                       .y = x.data(),
                       .n_rows = 2,
                       .n_heads = 3,
                       .dim = 8,
                       .x_row_stride = 24,
                       .y_row_stride = 24};
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "rms_norm: " + part,
                 [&] { rms_norm(cpu_backend(), p); });
  };
  refuse("x is null", [](RmsNormParams& p) { p.x = nullptr; });
  refuse("weight is null", [](RmsNormParams& p) { p.weight = nullptr; });
  refuse("y is null", [](RmsNormParams& p) { p.y = nullptr; });
  refuse("n_rows is -2", [](RmsNormParams& p) { p.n_rows = -2; });
  refuse("n_heads is 0", [](RmsNormParams& p) { p.n_heads = 0; });
  refuse("dim is 0", [](RmsNormParams& p) { p.dim = 0; });
  refuse("eps is nan", [](RmsNormParams& p) { p.eps = kPoison; });
  refuse("x_row_stride is 23, expected at least 24", [](RmsNormParams& p) { p.x_row_stride = 23; });
  refuse("y_row_stride is 0, expected at least 24", [](RmsNormParams& p) { p.y_row_stride = 0; });
  refuse("y_row_stride is 25, expected 24", [](RmsNormParams& p) { p.y_row_stride = 25; });
  rms_norm(cpu_backend(), {.n_rows = 0, .dim = 8});
}

}  // namespace
}  // namespace kdt::test
