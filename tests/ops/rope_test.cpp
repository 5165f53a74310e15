#include "ops/rope.h"

#include <gtest/gtest.h>

#include <cmath>

#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

TEST(Rope, Golden) {
  for (const Golden& g : golden_bundles("rope")) {
    SCOPED_TRACE(g.label());
    const std::vector<int64_t> shape = g.shape("x");
    const auto x = g.floats("x"), inv_freq = g.floats("inv_freq"), want = g.floats("y");
    const auto positions = g.get<int32_t>("positions");
    std::vector<float> y(x.size(), kPoison);
    rope(cpu_backend(), {.x = x.data(),
                         .y = y.data(),
                         .positions = positions.data(),
                         .inv_freq = inv_freq.data(),
                         .n_rows = static_cast<int32_t>(shape[0]),
                         .n_heads = static_cast<int32_t>(shape[1]),
                         .dim = static_cast<int32_t>(shape[2]),
                         .x_row_stride = shape[1] * shape[2],
                         .x_head_stride = shape[2],
                         .y_row_stride = shape[1] * shape[2],
                         .y_head_stride = shape[2],
                         .amplitude = g.scalar<float>("amplitude"),
                         .interleaved = g.flag("interleaved")});
    EXPECT_LE(relative_error(y.data(), want.data(), y.size()), tolerance(DType::kF32, 2));
  }
}

struct Problem {
  int rows, heads, dim;
  bool interleaved, head_major;  // head_major: [H, M, dim]
  std::vector<float> x, inv_freq;
  std::vector<int32_t> positions;

  int64_t row_stride() const { return head_major ? dim : heads * dim; }
  int64_t head_stride() const { return head_major ? rows * dim : dim; }
  RopeParams params(float* y) const {
    return {.x = x.data(),
            .y = y,
            .positions = positions.data(),
            .inv_freq = inv_freq.data(),
            .n_rows = rows,
            .n_heads = heads,
            .dim = dim,
            .x_row_stride = row_stride(),
            .x_head_stride = head_stride(),
            .y_row_stride = row_stride(),
            .y_head_stride = head_stride(),
            .amplitude = 1.25f,
            .interleaved = interleaved};
  }
};

Problem make(int rows, int heads, int dim, bool interleaved, bool head_major) {
  Random random(dim);
  Problem t = {rows, heads, dim, interleaved, head_major, random.normals(rows * heads * dim),
               {},   {}};
  for (int i = 0; i < dim / 2; ++i) {
    t.inv_freq.push_back(static_cast<float>(std::pow(50000.0, -2.0 * i / dim)));
  }
  for (int m = 0; m < rows; ++m)
    t.positions.push_back(static_cast<int32_t>(random.integer(0, 262143)));
  return t;
}

TEST(Rope, MatchesDoubleAtTheRoundedAngle) {
  for (int dim : {2, 64, 128, 130, 300}) {
    for (int variant = 0; variant < 4; ++variant) {
      SCOPED_TRACE(dim * 10 + variant);
      const Problem t = make(7, 3, dim, variant % 2 == 0, variant / 2 == 0);
      std::vector<float> y(t.x.size(), kPoison), in_place = t.x;
      std::vector<double> want(t.x.size());
      for (int m = 0; m < t.rows; ++m) {
        for (int h = 0; h < t.heads; ++h) {
          const int64_t base = m * t.row_stride() + h * t.head_stride();
          for (int i = 0; i < dim / 2; ++i) {
            const float angle = static_cast<float>(t.positions[m]) * t.inv_freq[i];
            const double c = 1.25 * std::cos(static_cast<double>(angle));
            const double s = 1.25 * std::sin(static_cast<double>(angle));
            const int64_t first = base + (t.interleaved ? 2 * i : i);
            const int64_t second = t.interleaved ? first + 1 : first + dim / 2;
            want[first] = t.x[first] * c - t.x[second] * s;
            want[second] = t.x[second] * c + t.x[first] * s;
          }
        }
      }
      rope(cpu_backend(), t.params(y.data()));
      EXPECT_LE(relative_error(y.data(), want.data(), y.size()), tolerance(DType::kF32, 2));
      RopeParams p = t.params(in_place.data());
      p.x = in_place.data();
      rope(cpu_backend(), p);
      EXPECT_EQ(in_place, y);
    }
  }
}

TEST(Rope, ARowAloneHasTheSameBits) {
  const Problem t = make(300, 5, 64, true, false);
  std::vector<float> y(t.x.size(), kPoison);
  rope(cpu_backend(), t.params(y.data()));
  for (int m = 0; m < t.rows; m += 37) {
    std::vector<float> alone(t.heads * t.dim, kPoison);
    RopeParams p = t.params(alone.data());
    p.x += m * t.row_stride(), p.positions += m, p.n_rows = 1;
    rope(cpu_backend(), p);
    for (size_t i = 0; i < alone.size(); ++i) ASSERT_EQ(alone[i], y[m * t.row_stride() + i]);
  }
}

TEST(Rope, RefusesBadArguments) {
  const Problem t = make(3, 2, 8, true, false);
  std::vector<float> y(t.x.size());
  const auto refuse = [&](const std::string& part, auto change) {
    RopeParams p = t.params(y.data());
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "rope: " + part, [&] { rope(cpu_backend(), p); });
  };
  refuse("x is null", [](RopeParams& p) { p.x = nullptr; });
  refuse("y is null", [](RopeParams& p) { p.y = nullptr; });
  refuse("positions is null", [](RopeParams& p) { p.positions = nullptr; });
  refuse("inv_freq is null", [](RopeParams& p) { p.inv_freq = nullptr; });
  refuse("n_rows is -1", [](RopeParams& p) { p.n_rows = -1; });
  refuse("n_heads is 0", [](RopeParams& p) { p.n_heads = 0; });
  refuse("dim is 7", [](RopeParams& p) { p.dim = 7; });
  refuse("dim is 0", [](RopeParams& p) { p.dim = 0; });
  refuse("x_head_stride is 7", [](RopeParams& p) { p.x_head_stride = 7; });
  refuse("y_row_stride is 7", [](RopeParams& p) { p.y_row_stride = 7; });
  refuse("y_row_stride is 12", [](RopeParams& p) { p.y_row_stride = 12; });
  refuse("y_row_stride is 32, expected 16", [](RopeParams& p) {
    p.y = const_cast<float*>(p.x);
    p.y_row_stride = 32;
  });
  rope(cpu_backend(), {.n_rows = 0, .dim = 8});
}

}  // namespace
}  // namespace kdt::test
