#include "ops/draft_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/ops/arrays.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"

namespace kdt::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

struct TopkProblem {
  int batch = 1, depth = 1, vocab = 1, k = 1, padding = 0;  // padding: row_stride - vocab
  DType dtype = DType::kF32;
  std::vector<float> logits;  // [B, L, vocab + padding]
};

struct TopkResult {
  std::vector<float> logp, log_z;
  std::vector<int32_t> ids, status;
};

TopkResult run(const Backend& backend, const TopkProblem& t) {
  auto logits = typed_array(backend, t.logits, t.dtype);
  const size_t rows = static_cast<size_t>(t.batch) * t.depth;
  auto logp = poisoned<float>(backend, rows * t.k), log_z = poisoned<float>(backend, rows);
  auto ids = poisoned<int32_t>(backend, rows * t.k), status = poisoned<int32_t>(backend, t.batch);
  DraftTopkParams p = {.logits = logits.data(),
                       .dtype = t.dtype,
                       .row_stride = t.vocab + t.padding,
                       .batch = t.batch,
                       .depth = t.depth,
                       .vocab = t.vocab,
                       .k = t.k,
                       .logp = logp.data(),
                       .ids = ids.data(),
                       .log_z = log_z.data(),
                       .status = status.data()};
  Scratch scratch(backend, draft_topk_workspace(backend, p));
  p.workspace = scratch.workspace();
  draft_topk(backend, p);
  TopkResult r{logp.get(), log_z.get(), ids.get(), status.get()};
  p.log_z = nullptr;  // optional
  draft_topk(backend, p);
  EXPECT_EQ(logp.get(), r.logp);
  return r;
}

float ulps(float value, int n) {
  return static_cast<float>(n) * (std::nextafter(std::fabs(value), kInf) - std::fabs(value));
}

void expect_log_z(float got, float want) {
  if (std::isinf(want))
    EXPECT_EQ(got, want);
  else
    EXPECT_NEAR(got, want, ulps(want, 2));
}

void expect_matches_definition(const TopkProblem& t) {
  const TopkResult got = run(cpu_backend(), t);
  for (int b = 0; b < t.batch; ++b) {
    bool bad = false;
    for (int i = 0; i < t.depth * t.vocab; ++i) {
      const float x =
          t.logits[(static_cast<size_t>(b) * t.depth + i / t.vocab) * (t.vocab + t.padding) +
                   i % t.vocab];
      bad |= std::isnan(x) || x == kInf;
    }
    ASSERT_EQ(got.status[b], bad);
    for (int d = 0; d < t.depth; ++d) {
      const size_t row = static_cast<size_t>(b) * t.depth + d;
      const float* x = &t.logits[row * (t.vocab + t.padding)];
      std::vector<int> order;
      double peak = -kInf, sum = 0;
      for (int v = 0; v < t.vocab && !bad; ++v) {
        peak = std::max(peak, double{x[v]});
        if (x[v] > -kInf) order.push_back(v);
      }
      for (const int v : order) sum += std::exp(x[v] - peak);
      const auto log_z = static_cast<float>(order.empty() ? -kInf : peak + std::log(sum));
      std::stable_sort(order.begin(), order.end(), [&](int i, int j) { return x[i] > x[j]; });
      expect_log_z(got.log_z[row], log_z);
      for (int i = 0; i < t.k; ++i) {
        const bool there = i < static_cast<int>(order.size());
        ASSERT_EQ(got.ids[row * t.k + i], there ? order[i] : -1) << "row " << row << " rank " << i;
        ASSERT_EQ(got.logp[row * t.k + i], there ? x[order[i]] - got.log_z[row] : -kInf);
      }
    }
  }
}

TEST(DraftTopk, RandomBatchesEqualTheDefinition) {
  for (uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    TopkProblem t;
    const int vocabs[] = {1, 3, 15, 16, 17, 63, 100, 1023, 1024, 1025, 2500};
    const DType types[] = {DType::kF32, DType::kBF16, DType::kF16};
    t.vocab = vocabs[random.integer(0, 10)];
    t.batch = static_cast<int>(random.integer(1, 3));
    t.depth = static_cast<int>(random.integer(1, 4));
    t.k = static_cast<int>(random.integer(0, 2) ? random.integer(1, 70) : random.integer(1, 1024));
    t.padding = static_cast<int>(random.integer(0, 3));
    t.dtype = types[random.integer(0, 2)];
    const int kind = static_cast<int>(random.integer(0, 4));
    for (int i = 0; i < t.batch * t.depth * (t.vocab + t.padding); ++i) {
      float x = random.normal() * (kind == 0 ? 0.1f : 6.0f);
      if (kind == 1) x = std::round(x);                  // heavy ties, both zeros
      if (kind == 2) x = static_cast<float>(i) * 0.01f;  // ascending: every logit enters
      if (kind == 3 && random.integer(0, 1)) x = -kInf;
      if (i % (t.vocab + t.padding) >= t.vocab) x = NAN;  // between rows: never read
      t.logits.push_back(rounded(x, t.dtype));
    }
    if (seed % 7 == 0) t.logits[random.integer(0, t.vocab - 1)] = seed % 2 ? NAN : kInf;
    expect_matches_definition(t);
  }
}

TEST(DraftTopk, ExtremeRows) {
  const std::vector<std::vector<float>> rows = {
      {-kInf, -kInf, -kInf},         // nothing
      {3.0e38f, -3.0e38f, 3.0e38f},  // exp overflows without the maximum
      {0.0f, -0.0f, 0.0f},           // one tie
      {-kInf, -1e30f, -kInf},        // one token
  };
  for (const auto& row : rows) {
    TopkProblem t;
    t.vocab = 3;
    t.k = 4;
    t.logits = row;
    expect_matches_definition(t);
  }
  TopkProblem wide;
  wide.vocab = 262144;
  wide.k = 1024;
  wide.logits.assign(262144, 1.5f);
  expect_matches_definition(wide);
  Random random(4);
  wide.logits = random.normals(262144, 3.0f);
  expect_matches_definition(wide);
}

TopkProblem golden_problem(const Golden& g) {
  TopkProblem t;
  const auto shape = g.shape("logits");
  t.batch = static_cast<int>(shape[0]);
  t.depth = static_cast<int>(shape[1]);
  t.vocab = static_cast<int>(shape[2]);
  t.k = g.scalar<int32_t>("k");
  t.dtype = g.dtype("logits");
  t.logits = g.floats("logits");
  return t;
}

TEST(DraftTopk, GoldenBundles) {
  for (const Golden& g : golden_bundles("draft_topk")) {
    SCOPED_TRACE(g.label());
    const TopkProblem t = golden_problem(g);
    const TopkResult got = run(cpu_backend(), t);
    EXPECT_EQ(got.ids, g.get<int32_t>("ids"));
    EXPECT_EQ(got.status, g.get<int32_t>("status"));
    const auto log_z = g.get<float>("log_z"), logp = g.get<float>("logp");
    for (size_t row = 0; row < log_z.size(); ++row) {
      expect_log_z(got.log_z[row], log_z[row]);
      for (int i = 0; i < t.k; ++i) {
        const float want = logp[row * t.k + i], have = got.logp[row * t.k + i];
        if (std::isinf(want))
          EXPECT_EQ(have, want);
        else
          EXPECT_NEAR(have, want, ulps(log_z[row], 2)) << "row " << row << " rank " << i;
      }
    }
  }
}

// A row's bits do not depend on what shares the call: every golden row of one vocabulary together.
TEST(DraftTopk, GoldenRequestsMixed) {
  TopkProblem all;
  std::vector<TopkProblem> parts;
  for (const Golden& g : golden_bundles("draft_topk")) {
    TopkProblem t = golden_problem(g);
    if (t.vocab != 300) continue;
    t.batch *= t.depth;  // a request per row
    t.depth = 1;
    t.k = 40;
    t.dtype = DType::kF32;
    parts.push_back(t);
    all.logits.insert(all.logits.end(), t.logits.begin(), t.logits.end());
  }
  ASSERT_GT(parts.size(), 1u);
  all.batch = static_cast<int>(all.logits.size() / 300);
  all.vocab = 300;
  all.k = 40;
  const TopkResult mixed = run(cpu_backend(), all);
  size_t row = 0;
  for (const TopkProblem& t : parts) {
    const TopkResult one = run(cpu_backend(), t);
    for (int b = 0; b < t.batch; ++b, ++row) {
      EXPECT_EQ(mixed.status[row], one.status[b]);
      EXPECT_EQ(mixed.log_z[row], one.log_z[b]);
      for (int i = 0; i < 40; ++i) {
        EXPECT_EQ(mixed.ids[row * 40 + i], one.ids[static_cast<size_t>(b) * 40 + i]);
        EXPECT_EQ(mixed.logp[row * 40 + i], one.logp[static_cast<size_t>(b) * 40 + i]);
      }
    }
  }
}

TEST(DraftTopk, RefusesImpossibleArguments) {
  const auto message_of = [](auto change) -> std::string {
    TopkProblem t;
    t.logits.resize(64);
    t.vocab = 8;
    change(t);
    try {
      run(cpu_backend(), t);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kInvalidArgument);
      return e.what();
    }
    return "no error";
  };
  EXPECT_EQ(message_of([](auto&) {}), "no error");
  EXPECT_EQ(message_of([](auto& t) { t.batch = 0; }), "no error");
  EXPECT_EQ(message_of([](auto& t) { t.depth = 0; }), "no error");
  EXPECT_EQ(message_of([](auto& t) { t.k = 0; }), "draft_topk: k is 0, expected 1..1024");
  EXPECT_EQ(message_of([](auto& t) { t.k = 1025; }), "draft_topk: k is 1025, expected 1..1024");
  EXPECT_EQ(message_of([](auto& t) { t.vocab = 0; }), "draft_topk: vocab is 0, expected 1 or more");
  EXPECT_EQ(message_of([](auto& t) { t.padding = -1; }),
            "draft_topk: row_stride is 7, expected at least 8 (vocab)");
  EXPECT_EQ(message_of([](auto& t) { t.dtype = DType::kF64; }),
            "draft_topk: dtype is f64, expected f32, bf16 or f16");
  DraftTopkParams p = {.row_stride = 1, .batch = 1, .depth = 1, .vocab = 1, .k = 1};
  EXPECT_THROW(check(p), Error);  // null arrays
}

}  // namespace
}  // namespace kdt::test
