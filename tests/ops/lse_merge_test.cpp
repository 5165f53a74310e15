#include "ops/lse_merge.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/ops/arrays.h"
#include "tests/ops/golden.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct MergeProblem {
  int dim = 1;
  std::vector<float> out_a, lse_a, out_b, lse_b;
};

struct MergeResult {
  std::vector<float> out, lse;
  bool operator==(const MergeResult&) const = default;
};

enum class Into { kFresh, kA, kB };

MergeResult run(const Backend& backend, const MergeProblem& m, Into into = Into::kFresh) {
  Array<float> out_a(backend, m.out_a), lse_a(backend, m.lse_a);
  Array<float> out_b(backend, m.out_b), lse_b(backend, m.lse_b);
  auto out = poisoned<float>(backend, m.out_a.size());
  auto lse = poisoned<float>(backend, m.lse_a.size());
  Array<float>& to_out = into == Into::kA ? out_a : into == Into::kB ? out_b : out;
  Array<float>& to_lse = into == Into::kA ? lse_a : into == Into::kB ? lse_b : lse;
  lse_merge(backend, {.out_a = out_a.data(),
                      .lse_a = lse_a.data(),
                      .out_b = out_b.data(),
                      .lse_b = lse_b.data(),
                      .out = to_out.data(),
                      .lse = to_lse.data(),
                      .n_rows = static_cast<int64_t>(m.lse_a.size()),
                      .dim = m.dim});
  return {to_out.get(), to_lse.get()};
}

void expect_close(const MergeResult& got, const std::vector<double>& out,
                  const std::vector<double>& lse) {
  EXPECT_LE(relative_error(got.out.data(), out.data(), out.size()), tolerance(DType::kF32, 2));
  for (size_t i = 0; i < lse.size(); ++i) {
    if (std::isinf(lse[i]))
      EXPECT_EQ(got.lse[i], lse[i]);
    else
      EXPECT_NEAR(got.lse[i], lse[i], lse_tolerance(DType::kF32)) << i;
  }
}

class LseMerge : public OnBackends {};
INSTANTIATE_ON_BACKENDS(LseMerge);

TEST_P(LseMerge, RandomRowsMatchDouble) {
  const uint64_t n_seeds = seeds(is_cpu() ? 200 : 2000);
  for (uint64_t seed = 0; seed < n_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    MergeProblem m;
    m.dim = static_cast<int>(random.integer(1, 600));
    const int rows = static_cast<int>(random.integer(0, seed % 10 ? 20 : 200));
    const float spread = random.integer(0, 1) ? 3.0f : 200.0f;
    m.out_a = random.normals(static_cast<size_t>(rows) * m.dim);
    m.out_b = random.normals(static_cast<size_t>(rows) * m.dim);
    m.lse_a = random.normals(rows, spread);
    m.lse_b = random.normals(rows, spread);
    std::vector<double> out, lse;
    for (int row = 0; row < rows; ++row) {
      const bool empty_a = random.integer(0, 5) == 0, empty_b = random.integer(0, 5) == 0;
      if (empty_a) m.lse_a[row] = -kInf;
      if (empty_b) m.lse_b[row] = -kInf;
      const double a = m.lse_a[row], b = m.lse_b[row], peak = std::max(a, b);
      lse.push_back(empty_a && empty_b ? -kInf
                                       : peak + std::log(std::exp(a - peak) + std::exp(b - peak)));
      for (int i = 0; i < m.dim; ++i) {
        float &x = m.out_a[row * m.dim + i], &y = m.out_b[row * m.dim + i];
        if (empty_a) x = NAN;  // an empty side may hold anything
        if (empty_b) y = NAN;
        out.push_back((empty_a ? 0 : std::exp(a - lse[row]) * x) +
                      (empty_b ? 0 : std::exp(b - lse[row]) * y));
      }
    }
    const MergeResult got = run(backend(), m);
    expect_close(got, out, lse);
    EXPECT_TRUE(run(backend(), m, Into::kA) == got);
    EXPECT_TRUE(run(backend(), m, Into::kB) == got);
  }
}

TEST_P(LseMerge, HundredRunsGiveTheSameBits) {
  Random random(7);
  const MergeProblem m = {512, random.normals(100 * 512), random.normals(100),
                          random.normals(100 * 512), random.normals(100)};
  const MergeResult first = run(backend(), m);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(run(backend(), m) == first);
}

MergeProblem golden_problem(const Golden& g) {
  return {static_cast<int>(g.shape("out_a")[1]), g.get<float>("out_a"), g.get<float>("lse_a"),
          g.get<float>("out_b"), g.get<float>("lse_b")};
}

TEST_P(LseMerge, GoldenBundlesAloneAndMixed) {
  MergeProblem all;
  MergeResult alone;
  for (const Golden& g : golden_bundles("lse_merge")) {
    SCOPED_TRACE(g.label());
    const MergeProblem m = golden_problem(g);
    const MergeResult got = run(backend(), m);
    const auto out = g.get<float>("out"), lse = g.get<float>("lse");
    expect_close(got, {out.begin(), out.end()}, {lse.begin(), lse.end()});
    all.dim = m.dim;
    const auto extend = [](auto& x, const auto& y) { x.insert(x.end(), y.begin(), y.end()); };
    extend(all.out_a, m.out_a);
    extend(all.lse_a, m.lse_a);
    extend(all.out_b, m.out_b);
    extend(all.lse_b, m.lse_b);
    extend(alone.out, got.out);
    extend(alone.lse, got.lse);
  }
  EXPECT_TRUE(run(backend(), all) == alone);
}

TEST_P(LseMerge, NanStaysInItsRow) {
  const MergeProblem m = {1, {1, 2}, {NAN, 0}, {3, 4}, {0, 0}};
  const MergeResult r = run(backend(), m);
  EXPECT_TRUE(std::isnan(r.lse[0]) && std::isnan(r.out[0]));
  EXPECT_EQ(r.out[1], 3.0f);
}

TEST(LseMergeArguments, RefusesImpossibleArguments) {
  EXPECT_THROW(lse_merge(cpu_backend(), {.n_rows = 1, .dim = 1}), Error);
  EXPECT_THROW(lse_merge(cpu_backend(), {.n_rows = -1, .dim = 1}), Error);
  EXPECT_THROW(lse_merge(cpu_backend(), {.n_rows = 0, .dim = 0}), Error);
  EXPECT_NO_THROW(lse_merge(cpu_backend(), {.n_rows = 0, .dim = 1}));
}

}  // namespace
}  // namespace kdt::test
