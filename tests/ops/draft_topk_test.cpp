#include "ops/draft_topk.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/on_backends.h"
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

// What backends may differ by. The sum of fp32 exponentials is accurate relative to itself, so its
// logarithm is absolutely, however near 0 the peak brings log_z.
float log_z_tolerance(float log_z) {
  return ulps(std::max(std::fabs(log_z), 1.0f), 2);
}

void expect_log_z(float got, float want) {
  if (std::isinf(want))
    EXPECT_EQ(got, want);
  else
    EXPECT_NEAR(got, want, log_z_tolerance(want));
}

void expect_matches_definition(const Backend& backend, const TopkProblem& t) {
  const TopkResult got = run(backend, t);
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

class DraftTopk : public OnBackends {};
INSTANTIATE_ON_BACKENDS(DraftTopk);

TEST_P(DraftTopk, RandomBatchesEqualTheDefinition) {
  const uint64_t n_seeds = seeds(is_cpu() ? 300 : 2000);
  for (uint64_t seed = 0; seed < n_seeds; ++seed) {
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
    if (seed % 250 == 249) {
      t.vocab = seed % 500 == 499 ? 262144 : 163840;
      t.batch = t.depth = 1;
    } else if (seed % 250 == 248) {
      t.batch = 256;
      t.vocab = 70;
    }
    for (int i = 0; i < t.batch * t.depth * (t.vocab + t.padding); ++i) {
      float x = random.normal() * (kind == 0 ? 0.1f : 6.0f);
      if (kind == 1) x = std::round(x);                  // heavy ties, both zeros
      if (kind == 2) x = static_cast<float>(i) * 0.01f;  // ascending: every logit enters
      if (kind == 3 && random.integer(0, 1)) x = -kInf;
      if (i % (t.vocab + t.padding) >= t.vocab) x = NAN;  // between rows: never read
      t.logits.push_back(rounded(x, t.dtype));
    }
    if (seed % 7 == 0) t.logits[random.integer(0, t.vocab - 1)] = seed % 2 ? NAN : kInf;
    expect_matches_definition(backend(), t);
  }
}

TEST_P(DraftTopk, ExtremeRows) {
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
    expect_matches_definition(backend(), t);
  }
  TopkProblem wide;
  wide.vocab = 262144;
  wide.k = 1024;
  wide.logits.assign(262144, 1.5f);
  expect_matches_definition(backend(), wide);
  Random random(4);
  wide.logits = random.normals(262144, 3.0f);
  expect_matches_definition(backend(), wide);
}

// Every way through the op on rows small enough for slow tools: one CTA and several, few and many
// candidates, more equal logits than any list holds.
TEST_P(DraftTopk, SmallCases) {
  Random random(1);
  for (const int vocab : {40, 1500, 6000}) {
    for (const int k : {5, 100}) {
      TopkProblem t;
      t.vocab = vocab;
      t.k = k;
      t.depth = 2;
      t.dtype = k == 5 ? DType::kBF16 : DType::kF32;
      for (int i = 0; i < 2 * vocab; ++i)
        t.logits.push_back(i < vocab ? rounded(random.normal(), t.dtype) : 1.0f);
      expect_matches_definition(backend(), t);
    }
  }
}

// The best logits lie regularly, as no vocabulary's would by chance: a kernel that deals a row to
// eight blocks, in turn and in lines of 64 logits, gives them all to one of them.
TEST_P(DraftTopk, BestLogitsALineOfEveryEight) {
  Random random(9);
  TopkProblem t;
  t.vocab = 20000;
  t.k = 64;
  for (int i = 0; i < t.vocab; ++i) t.logits.push_back(random.normal());
  for (int i = 0; i < 80; ++i) t.logits[(8 * (i % 8) + 3) * 64 + 6 * (i / 8)] += 50.0f;
  expect_matches_definition(backend(), t);
}

TEST_P(DraftTopk, HundredRunsGiveTheSameBits) {
  Random random(11);
  TopkProblem t;
  t.vocab = is_cpu() ? 2000 : 163840;
  t.depth = 3;
  t.k = 64;
  t.dtype = DType::kBF16;
  for (int i = 0; i < t.depth * t.vocab; ++i)
    t.logits.push_back(rounded(2.0f * random.normal(), t.dtype));
  const TopkResult first = run(backend(), t);
  for (int i = 0; i < 100; ++i) {
    const TopkResult again = run(backend(), t);
    ASSERT_EQ(again.ids, first.ids);
    ASSERT_EQ(again.logp, first.logp);
    ASSERT_EQ(again.log_z, first.log_z);
  }
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

TEST_P(DraftTopk, GoldenBundles) {
  for (const Golden& g : golden_bundles("draft_topk")) {
    SCOPED_TRACE(g.label());
    const TopkProblem t = golden_problem(g);
    const TopkResult got = run(backend(), t);
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
          EXPECT_NEAR(have, want, log_z_tolerance(log_z[row])) << "row " << row << " rank " << i;
      }
    }
  }
}

// A row's bits do not depend on what shares the call: every golden row of one vocabulary together.
TEST_P(DraftTopk, GoldenRequestsMixed) {
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
  const TopkResult mixed = run(backend(), all);
  size_t row = 0;
  for (const TopkProblem& t : parts) {
    const TopkResult one = run(backend(), t);
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

// The vocabulary dealt to shards in ranges, each shard's part of the logits an array of its own.
TopkResult run_sharded(const Backend& backend, const TopkProblem& t, int n_shards) {
  const size_t rows = static_cast<size_t>(t.batch) * t.depth;
  auto logits = poisoned<float>(backend, n_shards * rows * t.k);
  auto ids = poisoned<int32_t>(backend, n_shards * rows * t.k);
  auto log_z = poisoned<float>(backend, n_shards * rows);
  auto status = poisoned<int32_t>(backend, static_cast<size_t>(n_shards) * t.batch);
  for (int s = 0; s < n_shards; ++s) {
    const int first = t.vocab * s / n_shards, n = t.vocab * (s + 1) / n_shards - first;
    std::vector<float> part;
    for (size_t row = 0; row < rows; ++row) {
      const auto begin =
          t.logits.begin() + static_cast<int64_t>(row) * (t.vocab + t.padding) + first;
      part.insert(part.end(), begin, begin + n);
    }
    auto columns = typed_array(backend, part, t.dtype);
    DraftTopkParams p = {.logits = columns.data(),
                         .dtype = t.dtype,
                         .row_stride = n,
                         .batch = t.batch,
                         .depth = t.depth,
                         .vocab = n,
                         .k = t.k,
                         .shard = true,
                         .first_id = first,
                         .logp = logits.data() + s * rows * t.k,
                         .ids = ids.data() + s * rows * t.k,
                         .log_z = log_z.data() + s * rows,
                         .status = status.data() + s * t.batch};
    Scratch scratch(backend, draft_topk_workspace(backend, p));
    p.workspace = scratch.workspace();
    draft_topk(backend, p);
    backend.synchronize({});
  }
  auto logp_all = poisoned<float>(backend, rows * t.k), log_z_all = poisoned<float>(backend, rows);
  auto ids_all = poisoned<int32_t>(backend, rows * t.k);
  auto status_all = poisoned<int32_t>(backend, t.batch);
  draft_topk_merge(backend, {.shard_logits = logits.data(),
                             .shard_ids = ids.data(),
                             .shard_log_z = log_z.data(),
                             .shard_status = status.data(),
                             .n_shards = n_shards,
                             .batch = t.batch,
                             .depth = t.depth,
                             .k = t.k,
                             .logp = logp_all.data(),
                             .ids = ids_all.data(),
                             .log_z = log_z_all.data(),
                             .status = status_all.data()});
  return {logp_all.get(), log_z_all.get(), ids_all.get(), status_all.get()};
}

TEST_P(DraftTopk, ShardsMergeToTheWhole) {
  for (uint64_t seed = 0; seed < seeds(60); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    TopkProblem t;
    const DType types[] = {DType::kF32, DType::kBF16, DType::kF16};
    t.vocab = static_cast<int>(random.integer(8, 3000));
    t.batch = static_cast<int>(random.integer(1, 3));
    t.depth = static_cast<int>(random.integer(1, 3));
    t.k = static_cast<int>(random.integer(1, seed % 4 ? 70 : 1024));
    t.dtype = types[seed % 3];
    for (int i = 0; i < t.batch * t.depth * t.vocab; ++i) {
      const float x = random.integer(0, 9) ? 6.0f * random.normal() : -kInf;
      t.logits.push_back(rounded(seed % 2 ? x : std::round(x), t.dtype));
    }
    if (seed % 5 == 0) t.logits[random.integer(0, t.vocab - 1)] = NAN;
    const TopkResult whole = run(backend(), t);
    const TopkResult merged = run_sharded(backend(), t, static_cast<int>(random.integer(1, 8)));
    ASSERT_EQ(merged.ids, whole.ids);
    ASSERT_EQ(merged.status, whole.status);
    for (size_t row = 0; row < whole.log_z.size(); ++row) {
      expect_log_z(merged.log_z[row], whole.log_z[row]);
      for (int i = 0; i < t.k; ++i) {
        const float want = whole.logp[row * t.k + i];
        if (std::isinf(want))
          ASSERT_EQ(merged.logp[row * t.k + i], want);
        else
          ASSERT_NEAR(merged.logp[row * t.k + i], want,
                      log_z_tolerance(whole.log_z[row]) + ulps(want, 1));
      }
    }
  }
}

TEST(DraftTopkArguments, RefusesImpossibleArguments) {
  const auto with = [](auto change) -> std::string {
    TopkProblem t;
    t.logits.resize(64);
    t.vocab = 8;
    change(t);
    return test::message_of([&] { run(cpu_backend(), t); }, ErrorCode::kInvalidArgument);
  };
  EXPECT_EQ(with([](auto&) {}), "no error");
  EXPECT_EQ(with([](auto& t) { t.batch = 0; }), "no error");
  EXPECT_EQ(with([](auto& t) { t.depth = 0; }), "no error");
  EXPECT_EQ(with([](auto& t) { t.k = 0; }), "draft_topk: k is 0, expected 1..1024");
  EXPECT_EQ(with([](auto& t) { t.k = 1025; }), "draft_topk: k is 1025, expected 1..1024");
  EXPECT_EQ(with([](auto& t) { t.vocab = 0; }), "draft_topk: vocab is 0, expected 1 or more");
  EXPECT_EQ(with([](auto& t) { t.padding = -1; }),
            "draft_topk: row_stride is 7, expected at least 8 (vocab)");
  EXPECT_EQ(with([](auto& t) { t.dtype = DType::kF64; }),
            "draft_topk: dtype is f64, expected f32, bf16 or f16");
  DraftTopkParams p = {.row_stride = 1, .batch = 1, .depth = 1, .vocab = 1, .k = 1};
  EXPECT_THROW(check(p), Error);  // null arrays
  const DraftTopkMergeParams good = {.n_shards = 1, .k = 1};
  EXPECT_NO_THROW(check(good));
  for (const DraftTopkMergeParams& bad :
       {DraftTopkMergeParams{.n_shards = 0, .k = 1}, DraftTopkMergeParams{.n_shards = 1025, .k = 1},
        DraftTopkMergeParams{.n_shards = 1, .batch = -1, .k = 1},
        DraftTopkMergeParams{.n_shards = 1, .depth = -1, .k = 1},
        DraftTopkMergeParams{.n_shards = 1, .k = 1025},
        DraftTopkMergeParams{.n_shards = 1, .batch = 1, .k = 1}})
    EXPECT_THROW(check(bad), Error);
}

}  // namespace
}  // namespace kdt::test
