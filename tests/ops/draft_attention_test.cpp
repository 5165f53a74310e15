#include "ops/draft_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

struct DraftProblem {
  int heads = 1, kv_heads = 1, head_dim = 16, window = 0, n_pages = 0, max_blocks = 1, n_rows = 0;
  bool causal = false;
  float scale = 0.25f;
  std::vector<float> q, k, v, k_pages, v_pages;
  std::vector<int32_t> row_offset, n_nodes, prefix_len, block_table;
};

std::vector<float> run(const Backend& backend, const DraftProblem& d) {
  Array<float> q(backend, d.q), k(backend, d.k), v(backend, d.v);
  Array<float> k_pages(backend, d.k_pages), v_pages(backend, d.v_pages);
  Array<int32_t> row_offset(backend, d.row_offset), n_nodes(backend, d.n_nodes);
  Array<int32_t> prefix_len(backend, d.prefix_len), block_table(backend, d.block_table);
  auto out = poisoned<float>(backend, d.q.size());
  DraftAttentionParams p = {
      .rows = {.n_requests = static_cast<int32_t>(d.row_offset.size()),
               .n_rows = d.n_rows,
               .row_offset = row_offset.data(),
               .n_nodes = n_nodes.data(),
               .prefix_len = prefix_len.data(),
               .block_table = block_table.data(),
               .max_blocks = d.max_blocks},
      .q = q.data(),
      .k = k.data(),
      .v = v.data(),
      .k_pages = k_pages.data(),
      .v_pages = v_pages.data(),
      .out = out.data(),
      .n_pages = d.n_pages,
      .n_heads = d.heads,
      .n_kv_heads = d.kv_heads,
      .head_dim = d.head_dim,
      .scale = d.scale,
      .sliding_window = d.window,
      .causal = d.causal,
  };
  Scratch scratch(backend, draft_attention_workspace(backend, p));
  p.workspace = scratch.workspace();
  draft_attention(backend, p);
  return out.get();
}

std::vector<double> reference(const DraftProblem& d) {
  std::vector<double> out(d.q.size());
  const int group = d.heads / d.kv_heads, dim = d.head_dim;
  for (size_t b = 0; b < d.row_offset.size(); ++b) {
    for (int i = 0; i < d.n_nodes[b]; ++i) {
      const int position = d.prefix_len[b] + i;
      const int end = d.causal ? position + 1 : d.prefix_len[b] + d.n_nodes[b];
      for (int h = 0; h < d.heads; ++h) {
        const size_t query = (static_cast<size_t>(d.row_offset[b] + i) * d.heads + h) * dim;
        std::vector<double> weights;
        std::vector<const float*> values;
        for (int j = 0; j < end; ++j) {
          if (d.window > 0 && j <= position - d.window) continue;
          const bool cached = j < d.prefix_len[b];
          const size_t row = cached ? d.block_table[b * d.max_blocks + j / 64] * 64 + j % 64
                                    : d.row_offset[b] + j - d.prefix_len[b];
          const size_t key = (row * d.kv_heads + h / group) * dim;
          double s = 0;
          for (int x = 0; x < dim; ++x)
            s += double{d.q[query + x]} * (cached ? d.k_pages : d.k)[key + x];
          weights.push_back(d.scale * s);
          values.push_back(&(cached ? d.v_pages : d.v)[key]);
        }
        const double peak = *std::max_element(weights.begin(), weights.end());
        double total = 0;
        for (double& w : weights) total += w = std::exp(w - peak);
        for (size_t j = 0; j < weights.size(); ++j)
          for (int x = 0; x < dim; ++x) out[query + x] += weights[j] / total * values[j][x];
      }
    }
  }
  return out;
}

void add_request(DraftProblem& d, Random& random, int prefix, int n) {
  d.row_offset.push_back(d.n_rows);
  d.n_nodes.push_back(n);
  d.prefix_len.push_back(prefix);
  d.n_rows += n;
  for (int i = 0; i < d.max_blocks; ++i)
    d.block_table.push_back(i * 64 < prefix ? d.n_pages + (prefix + 63) / 64 - 1 - i : -1);
  d.n_pages += (prefix + 63) / 64;
  const auto extend = [&](std::vector<float>& x, size_t n_values) {
    const std::vector<float> more = random.normals(n_values);
    x.insert(x.end(), more.begin(), more.end());
  };
  const size_t width = static_cast<size_t>(d.kv_heads) * d.head_dim;
  extend(d.q, static_cast<size_t>(n) * d.heads * d.head_dim);
  extend(d.k, n * width);
  extend(d.v, n * width);
  extend(d.k_pages, static_cast<size_t>((prefix + 63) / 64) * 64 * width);
  extend(d.v_pages, static_cast<size_t>((prefix + 63) / 64) * 64 * width);
}

DraftProblem random_problem(Random& random) {
  DraftProblem d;
  d.kv_heads = static_cast<int>(random.integer(1, 4));
  const int groups[] = {1, 2, 3, 8, 34};
  d.heads = d.kv_heads * groups[random.integer(0, 4)];
  d.head_dim =
      static_cast<int>(random.integer(0, 2) ? 16 * random.integer(1, 4) : random.integer(1, 40));
  const int windows[] = {0, 0, 1, 7, 64, 100};
  d.window = windows[random.integer(0, 5)];
  d.causal = random.integer(0, 1);
  d.max_blocks = 4;
  d.n_pages = 1;  // page 0 belongs to nobody
  d.k_pages.assign(static_cast<size_t>(64) * d.kv_heads * d.head_dim, NAN);
  d.v_pages = d.k_pages;
  const int edges[] = {0, 1, 50, 63, 64, 65, 128, 200};
  for (int64_t b = random.integer(1, 3); b > 0; --b)
    add_request(d, random, edges[random.integer(0, 7)], static_cast<int>(random.integer(0, 20)));
  return d;
}

TEST(DraftAttention, RandomBatchesMatchDouble) {
  for (uint64_t seed = 0; seed < 200; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const DraftProblem d = random_problem(random);
    const std::vector<float> got = run(cpu_backend(), d);
    EXPECT_LE(relative_error(got.data(), reference(d).data(), got.size()),
              tolerance(DType::kF32, 300 + d.head_dim));
  }
}

DraftProblem golden_problem(const Golden& g) {
  DraftProblem d;
  d.n_rows = static_cast<int>(g.shape("q")[0]);
  d.heads = static_cast<int>(g.shape("q")[1]);
  d.head_dim = static_cast<int>(g.shape("q")[2]);
  d.kv_heads = static_cast<int>(g.shape("k")[1]);
  d.max_blocks = static_cast<int>(g.shape("block_table")[1]);
  d.scale = g.scalar<float>("scale");
  d.window = g.scalar<int32_t>("sliding_window");
  d.causal = g.flag("causal");
  d.q = g.floats("q");
  d.k = g.floats("k");
  d.v = g.floats("v");
  d.n_pages = static_cast<int>(g.shape("k_pages")[0]);
  d.k_pages = g.floats("k_pages");
  d.v_pages = g.floats("v_pages");
  d.row_offset = g.get<int32_t>("row_offset");
  d.n_nodes = g.get<int32_t>("n_nodes");
  d.prefix_len = g.get<int32_t>("prefix_len");
  d.block_table = g.get<int32_t>("block_table");
  return d;
}

TEST(DraftAttention, GoldenBundles) {
  for (const Golden& g : golden_bundles("draft_attention")) {
    SCOPED_TRACE(g.label());
    const DraftProblem d = golden_problem(g);
    const std::vector<float> got = run(cpu_backend(), d), want = g.get<float>("out");
    EXPECT_LE(relative_error(got.data(), want.data(), want.size()),
              tolerance(DType::kF32, d.prefix_len[0] + d.head_dim));
  }
}

TEST(DraftAttention, BitsDoNotDependOnTheBatch) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const DraftProblem d = random_problem(random);
    const std::vector<float> together = run(cpu_backend(), d);
    for (size_t b = 0; b < d.row_offset.size(); ++b) {
      DraftProblem one = d;
      for (size_t other = 0; other < one.n_nodes.size(); ++other)
        if (other != b) one.n_nodes[other] = 0;
      const std::vector<float> alone = run(cpu_backend(), one);
      const size_t width = static_cast<size_t>(d.heads) * d.head_dim;
      const size_t begin = d.row_offset[b] * width, n = d.n_nodes[b] * width;
      for (size_t i = begin; i < begin + n; ++i) ASSERT_EQ(together[i], alone[i]);
    }
  }
}

// A causal row's context may lie in pages or in the block: the same bits.
TEST(DraftAttention, BitsDoNotDependOnWhereKeysLie) {
  for (const int window : {0, 30}) {
    Random random(6);
    DraftProblem d;
    d.heads = 4;
    d.kv_heads = 2;
    d.head_dim = 32;
    d.window = window;
    d.causal = true;
    d.max_blocks = 2;
    add_request(d, random, 60, 20);
    const std::vector<float> want = run(cpu_backend(), d);
    DraftProblem moved = d;  // 10 rows of the block go to the pages
    const size_t kv = 64, q = 128;
    moved.n_pages = 2;
    moved.block_table = {0, 1};
    moved.prefix_len = {70};
    moved.n_nodes = {10};
    moved.n_rows = 10;
    for (const auto pages : {&DraftProblem::k_pages, &DraftProblem::v_pages}) {
      const auto& block = pages == &DraftProblem::k_pages ? d.k : d.v;
      (moved.*pages).resize(128 * kv);
      std::copy_n(block.begin(), 10 * kv, (moved.*pages).begin() + 60 * kv);
    }
    moved.q.erase(moved.q.begin(), moved.q.begin() + 10 * q);
    moved.k.erase(moved.k.begin(), moved.k.begin() + 10 * kv);
    moved.v.erase(moved.v.begin(), moved.v.begin() + 10 * kv);
    const std::vector<float> got = run(cpu_backend(), moved);
    EXPECT_EQ(got, std::vector<float>(want.begin() + 10 * q, want.end())) << window;
  }
}

TEST(DraftAttention, NanStaysWithItsRequest) {
  Random random(9);
  DraftProblem d;
  d.max_blocks = 2;
  add_request(d, random, 20, 4);
  add_request(d, random, 70, 4);
  const std::vector<float> clean = run(cpu_backend(), d);
  d.k[0] = NAN;
  const std::vector<float> got = run(cpu_backend(), d);
  for (size_t i = 0; i < got.size(); ++i) {
    if (i < got.size() / 2)
      EXPECT_TRUE(std::isnan(got[i])) << i;
    else
      EXPECT_EQ(got[i], clean[i]) << i;
  }
}

TEST(DraftAttention, RefusesImpossibleArguments) {
  Random random(2);
  DraftProblem good;
  good.heads = 2;
  add_request(good, random, 5, 3);
  const auto with = [&](auto change) -> std::string {
    DraftProblem bad = good;
    change(bad);
    return test::message_of([&] { run(cpu_backend(), bad); }, ErrorCode::kInvalidArgument);
  };
  EXPECT_EQ(with([](auto&) {}), "no error");
  EXPECT_EQ(with([](auto& d) { d.kv_heads = 3; }),
            "draft_attention: n_heads is 2, expected a multiple of n_kv_heads 3");
  EXPECT_EQ(with([](auto& d) { d.head_dim = 0; }),
            "draft_attention: head_dim is 0, expected 1 or more");
  EXPECT_EQ(with([](auto& d) { d.window = -1; }),
            "draft_attention: sliding_window is -1, expected 0 (off) or more");
  EXPECT_EQ(with([](auto& d) { d.prefix_len[0] = 65; }),
            "draft_attention: prefix_len is 65, expected 0..64 (max_blocks pages) in request 0");
  EXPECT_EQ(with([](auto& d) { d.row_offset[0] = 1; }),
            "draft_attention: row_offset is 1, expected 0..0 for the 3 nodes of request 0");
  EXPECT_NE(with([](auto& d) { d.block_table[0] = -1; }).find("block_table is -1"),
            std::string::npos);
  EXPECT_NE(with([](auto& d) { d.block_table[0] = 1; }).find("block_table is 1"),
            std::string::npos);
}

}  // namespace
}  // namespace kdt::test
