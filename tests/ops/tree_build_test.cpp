#include "ops/tree_build.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "base/error.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/golden.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/random.h"

namespace kdt::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

struct Request {
  int budget = 0, max_depth = 0, max_rank = 1, root_token = 0, prefix_len = 0, row_offset = 0;
};

struct Batch {
  int depth = 0, k = 0, n_words = 0, max_budget = 0;
  std::vector<float> logp;   // [B, L, K]
  std::vector<int32_t> ids;  // [B, L, K]
  std::vector<Request> requests;
  int n_rows = 0;
};

struct Rows {
  std::vector<int32_t> tokens, parents, depths, positions, first_child, next_sibling, n_nodes;
  std::vector<double> scores;
  std::vector<uint64_t> ancestors;
  bool operator==(const Rows&) const = default;
};

// The definition, slowly: candidates carry their whole rank tuple and every pop looks at all.
Rows reference(const Batch& batch) {
  struct Candidate {
    double score;
    std::vector<int> ranks;
    int parent;
  };
  Rows out;
  const size_t n = batch.n_rows;
  for (auto* field : {&out.tokens, &out.parents, &out.depths, &out.positions, &out.first_child,
                      &out.next_sibling})
    field->resize(n);
  out.scores.resize(n);
  out.ancestors.resize(n * batch.n_words);
  for (size_t b = 0; b < batch.requests.size(); ++b) {
    const Request& r = batch.requests[b];
    const auto entry = [&](int d, int rank) { return (b * batch.depth + d - 1) * batch.k + rank; };
    const auto logp = [&](int d, int rank) { return double{batch.logp[entry(d, rank)]}; };
    const auto put = [&](int node, int token, int parent, int depth, double score) {
      const int row = r.row_offset + node;
      out.tokens[row] = token;
      out.parents[row] = parent;
      out.depths[row] = depth;
      out.positions[row] = r.prefix_len + depth;
      out.scores[row] = score;
      out.first_child[row] = out.next_sibling[row] = -1;
      std::vector<int> path = {parent < 0 ? 0 : node};
      while (out.parents[r.row_offset + path.back()] >= 0)
        path.push_back(out.parents[r.row_offset + path.back()]);
      uint64_t* words = &out.ancestors[static_cast<size_t>(row) * batch.n_words];
      for (int ancestor : path) words[ancestor / 64] |= uint64_t{1} << (ancestor % 64);
    };
    for (int node = 0; node <= r.budget; ++node) put(node, r.root_token, -1, 0, 0.0);
    std::vector<Candidate> open;
    const auto push = [&](Candidate c) {
      if (logp(static_cast<int>(c.ranks.size()), c.ranks.back()) > -kInf) open.push_back(c);
    };
    if (r.max_depth > 0) push({logp(1, 0), {0}, 0});
    int n_nodes = 1;
    while (!open.empty() && n_nodes <= r.budget) {
      const auto best =
          std::min_element(open.begin(), open.end(), [](const auto& x, const auto& y) {
            return x.score != y.score ? x.score > y.score : x.ranks < y.ranks;
          });
      const Candidate c = *best;
      open.erase(best);
      const int depth = static_cast<int>(c.ranks.size()), rank = c.ranks.back();
      put(n_nodes, batch.ids[entry(depth, rank)], c.parent, depth, c.score);
      if (rank + 1 < r.max_rank) {
        Candidate sibling = c;
        sibling.ranks.back() = rank + 1;
        sibling.score = (c.score - logp(depth, rank)) + logp(depth, rank + 1);
        push(sibling);
      }
      if (depth < r.max_depth) {
        Candidate child = {c.score + logp(depth + 1, 0), c.ranks, n_nodes};
        child.ranks.push_back(0);
        push(child);
      }
      ++n_nodes;
    }
    for (int node = n_nodes - 1; node > 0; --node) {  // prepend: children end in id order
      int32_t& first = out.first_child[r.row_offset + out.parents[r.row_offset + node]];
      out.next_sibling[r.row_offset + node] = first;
      first = node;
    }
    out.n_nodes.push_back(n_nodes);
  }
  return out;
}

Rows run(const Backend& backend, const Batch& batch, bool enough_workspace = true) {
  std::vector<int32_t> fields[6];
  for (const Request& r : batch.requests) {
    const int values[6] = {r.budget,     r.max_depth,  r.max_rank,
                           r.root_token, r.prefix_len, r.row_offset};
    for (int i = 0; i < 6; ++i) fields[i].push_back(values[i]);
  }
  std::vector<Array<int32_t>> inputs;
  for (const auto& field : fields) inputs.emplace_back(backend, field);
  Array<float> logp(backend, batch.logp);
  Array<int32_t> ids(backend, batch.ids);
  const size_t n = batch.n_rows;
  std::vector<Array<int32_t>> outs;
  for (int i = 0; i < 6; ++i) outs.push_back(poisoned<int32_t>(backend, n));
  auto scores = poisoned<double>(backend, n);
  auto ancestors = poisoned<uint64_t>(backend, n * batch.n_words);
  auto n_nodes = poisoned<int32_t>(backend, batch.requests.size());
  TreeBuildParams p = {
      .logp = logp.data(),
      .ids = ids.data(),
      .budget = inputs[0].data(),
      .max_depth = inputs[1].data(),
      .max_rank = inputs[2].data(),
      .root_token = inputs[3].data(),
      .prefix_len = inputs[4].data(),
      .row_offset = inputs[5].data(),
      .batch = static_cast<int32_t>(batch.requests.size()),
      .depth = batch.depth,
      .k = batch.k,
      .n_words = batch.n_words,
      .max_budget = batch.max_budget,
      .tokens = outs[0].data(),
      .parents = outs[1].data(),
      .depths = outs[2].data(),
      .positions = outs[3].data(),
      .scores = scores.data(),
      .ancestors = ancestors.data(),
      .first_child = outs[4].data(),
      .next_sibling = outs[5].data(),
      .n_nodes = n_nodes.data(),
  };
  Scratch scratch(backend, enough_workspace ? tree_build_workspace(backend, p) : 0);
  p.workspace = scratch.workspace();
  tree_build(backend, p);
  return {outs[0].get(), outs[1].get(), outs[2].get(), outs[3].get(),  outs[4].get(),
          outs[5].get(), n_nodes.get(), scores.get(),  ancestors.get()};
}

// Log-probabilities on a coarse grid are full of ties; `grid` 0 = continuous.
Batch random_batch(std::mt19937& rng, int n_requests, double grid, bool large = false) {
  const auto below = [&](int n) { return static_cast<int>(rng() % static_cast<uint32_t>(n)); };
  Batch batch;
  batch.depth = 1 + below(kMaxDepth);
  batch.k = 1 + below(large ? kMaxBudget : below(4) ? 8 : 80);
  std::vector<int> order(n_requests);
  for (int b = 0; b < n_requests; ++b) {
    order[b] = b;
    Request r;
    r.budget = below(large ? kMaxBudget + 1 : below(8) ? largest(70, 65) : largest(300, 65));
    r.max_depth = below(8) ? batch.depth : below(batch.depth + 1);
    r.max_rank = below(4) ? batch.k : 1 + below(batch.k);
    r.root_token = below(1000);
    r.prefix_len = below(largest(5000, 257));
    batch.max_budget = std::max(batch.max_budget, r.budget);
    batch.requests.push_back(r);
    for (int d = 0; d < batch.depth; ++d) {
      std::vector<float> row(batch.k);
      const int n_dead = below(5) ? 0 : below(batch.k + 1);
      for (int i = 0; i < batch.k; ++i) {
        double x = -static_cast<double>(rng()) / 4e9 * (1 + below(4));
        if (grid > 0) x = std::round(x / grid) * grid;
        row[i] = i < n_dead ? -std::numeric_limits<float>::infinity() : static_cast<float>(x);
      }
      std::sort(row.begin(), row.end(), std::greater<>());
      for (float x : row) {
        batch.logp.push_back(x);
        batch.ids.push_back(std::isinf(x) ? -1 : below(160000));
      }
    }
  }
  batch.n_words = batch.max_budget / 64 + 1 + below(2);
  std::shuffle(order.begin(), order.end(), rng);
  for (int b : order) {
    batch.requests[b].row_offset = batch.n_rows;
    batch.n_rows += batch.requests[b].budget + 1;
  }
  return batch;
}

Batch golden_batch(const Golden& g) {
  Batch batch;
  batch.depth = static_cast<int>(g.shape("logp")[1]);
  batch.k = static_cast<int>(g.shape("logp")[2]);
  batch.n_words = static_cast<int>(g.shape("ancestors")[1]);
  batch.n_rows = static_cast<int>(g.shape("tokens")[0]);
  batch.logp = g.get<float>("logp");
  batch.ids = g.get<int32_t>("ids");
  const auto budget = g.get<int32_t>("budget"), max_depth = g.get<int32_t>("max_depth");
  const auto max_rank = g.get<int32_t>("max_rank"), root = g.get<int32_t>("root_token");
  const auto prefix = g.get<int32_t>("prefix_len"), offset = g.get<int32_t>("row_offset");
  for (size_t b = 0; b < budget.size(); ++b) {
    batch.requests.push_back({budget[b], max_depth[b], max_rank[b], root[b], prefix[b], offset[b]});
    batch.max_budget = std::max(batch.max_budget, budget[b]);
  }
  return batch;
}

Rows golden_rows(const Golden& g) {
  return {
      g.get<int32_t>("tokens"),    g.get<int32_t>("parents"),     g.get<int32_t>("depths"),
      g.get<int32_t>("positions"), g.get<int32_t>("first_child"), g.get<int32_t>("next_sibling"),
      g.get<int32_t>("n_nodes"),   g.get<double>("scores"),       g.get<uint64_t>("ancestors")};
}

class TreeBuild : public OnBackends {};
INSTANTIATE_ON_BACKENDS(TreeBuild);

TEST_P(TreeBuild, GoldenBundles) {
  for (const Golden& g : golden_bundles("tree_build")) {
    SCOPED_TRACE(g.label());
    EXPECT_TRUE(run(backend(), golden_batch(g)) == golden_rows(g));
  }
}

// All golden requests of equal depth and K as one batch: each tree as in its own bundle.
TEST_P(TreeBuild, GoldenRequestsMixed) {
  int n_mixed = 0;
  const std::vector<Golden> bundles = golden_bundles("tree_build");
  for (const Golden& model : bundles) {
    Batch all = golden_batch(model);
    const int stride = all.max_budget + 1;
    all.requests.clear();
    all.logp.clear();
    all.ids.clear();
    all.n_rows = 0;
    std::vector<std::pair<Batch, Rows>> sources;
    for (const Golden& g : bundles) {
      Batch one = golden_batch(g);
      if (one.depth != all.depth || one.k != all.k || one.max_budget >= stride) continue;
      all.logp.insert(all.logp.begin(), one.logp.begin(), one.logp.end());
      all.ids.insert(all.ids.begin(), one.ids.begin(), one.ids.end());
      all.requests.insert(all.requests.begin(), one.requests.begin(), one.requests.end());
      sources.insert(sources.begin(), {one, golden_rows(g)});
    }
    for (size_t b = 0; b < all.requests.size(); ++b, all.n_rows += stride)
      all.requests[b].row_offset = all.n_rows;
    const Rows mixed = run(backend(), all);
    size_t b = 0;
    for (const auto& [one, rows] : sources) {
      for (size_t i = 0; i < one.requests.size(); ++i, ++b, ++n_mixed) {
        ASSERT_EQ(mixed.n_nodes[b], rows.n_nodes[i]);
        for (int node = 0; node <= one.requests[i].budget; ++node) {
          const int row = all.requests[b].row_offset + node;
          const int want = one.requests[i].row_offset + node;
          ASSERT_EQ(mixed.tokens[row], rows.tokens[want]);
          ASSERT_EQ(mixed.parents[row], rows.parents[want]);
          ASSERT_EQ(mixed.scores[row], rows.scores[want]);
          ASSERT_EQ(mixed.positions[row], rows.positions[want]);
          for (int w = 0; w < one.n_words; ++w)
            ASSERT_EQ(mixed.ancestors[static_cast<size_t>(row) * all.n_words + w],
                      rows.ancestors[static_cast<size_t>(want) * one.n_words + w]);
        }
      }
    }
  }
  EXPECT_GT(n_mixed, 100);
}

TEST_P(TreeBuild, RandomBatchesEqualTheDefinition) {
  for (uint64_t seed = 0; seed < seeds(250); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const double grids[4] = {0.0, 0.5, 0.125, 100.0};
    const Batch batch = random_batch(rng, 1 + static_cast<int>(seed % 5), grids[seed % 4]);
    ASSERT_TRUE(run(backend(), batch) == reference(batch));
  }
}

// Log-probabilities whose sums are no short fixed-point numbers, and such that paths cost too much
// for one.
TEST_P(TreeBuild, TinyAndHugeLogProbabilities) {
  uint64_t seed = 0;
  for (const float factor : {1e-12f, 1e-9f, 1e-6f, 1e-3f, 30.0f, 300.0f, 1e30f}) {
    for (uint64_t last = seed + seeds(20); seed < last; ++seed) {
      SCOPED_TRACE(testing::Message() << "seed " << seed << " factor " << factor);
      std::mt19937 rng(seed);
      Batch batch = random_batch(rng, 3, seed % 2 ? 0.125 : 0.0);
      for (float& x : batch.logp) x *= factor;
      ASSERT_TRUE(run(backend(), batch) == reference(batch));
    }
  }
}

// Many more, among them full batches and the largest trees.
TEST_P(TreeBuild, RandomBatchesEqualTheCpu) {
  if (is_cpu()) GTEST_SKIP() << "the reference itself";
  for (uint32_t seed = 1000; seed < 3000; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    std::mt19937 rng(seed);
    const double grids[4] = {0.0, 0.5, 0.125, 100.0};
    const bool large = seed % 40 == 0;
    const int n_requests = seed % 500 == 1 ? 256 : 1 + static_cast<int>(seed % 5);
    const Batch batch = random_batch(rng, n_requests, grids[seed / 7 % 4], large);
    ASSERT_TRUE(run(backend(), batch) == run(cpu_backend(), batch));
  }
}

TEST_P(TreeBuild, HundredRunsGiveTheSameBits) {
  std::mt19937 rng(5);
  const Batch batch = random_batch(rng, 5, 0.125);
  const Rows first = run(backend(), batch);
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(run(backend(), batch) == first);
}

Batch one_request(std::vector<std::vector<float>> logp, Request r) {
  Batch batch;
  batch.depth = static_cast<int>(logp.size());
  batch.k = logp.empty() ? 1 : static_cast<int>(logp[0].size());
  for (int d = 0; d < batch.depth; ++d) {
    for (int i = 0; i < batch.k; ++i) {
      batch.logp.push_back(logp[d][i]);
      batch.ids.push_back(100 * (d + 1) + i);
    }
  }
  batch.max_budget = r.budget;
  batch.n_words = r.budget / 64 + 1;
  batch.n_rows = r.budget + 1;
  batch.requests = {r};
  return batch;
}

TEST_P(TreeBuild, TiesGoToTheSmallestRankTuple) {
  // All scores equal (log-probability 0): tuples in order (0), (0,0), (0,1), (1), (1,0), (1,1).
  const Batch batch = one_request({{0, 0}, {0, 0}}, {.budget = 6, .max_depth = 2, .max_rank = 2});
  const Rows rows = run(backend(), batch);
  EXPECT_EQ(rows.tokens, (std::vector<int32_t>{0, 100, 200, 201, 101, 200, 201}));
  EXPECT_EQ(rows.parents, (std::vector<int32_t>{-1, 0, 1, 1, 0, 4, 4}));
  EXPECT_EQ(rows.first_child, (std::vector<int32_t>{1, 2, -1, -1, 5, -1, -1}));
  EXPECT_EQ(rows.next_sibling, (std::vector<int32_t>{-1, 4, 3, -1, -1, 6, -1}));
  EXPECT_EQ(rows.ancestors, (std::vector<uint64_t>{1, 3, 7, 11, 17, 49, 81}));
}

TEST_P(TreeBuild, RankOneIsAChainAndBudgetZeroTheRoot) {
  std::vector<std::vector<float>> logp(31, {-0.5f, -1.0f});
  const Rows chain =
      run(backend(), one_request(logp, {.budget = 31, .max_depth = 31, .max_rank = 1}));
  EXPECT_EQ(chain.n_nodes[0], 32);
  for (int i = 0; i < 32; ++i) {
    EXPECT_EQ(chain.parents[i], i - 1);
    EXPECT_EQ(chain.ancestors[i], (uint64_t{2} << i) - 1);
  }
  const Rows root = run(backend(), one_request(logp, {.max_depth = 31, .root_token = 7}));
  EXPECT_EQ(root.n_nodes[0], 1);
  EXPECT_EQ(root.tokens, std::vector<int32_t>{7});
  const Rows shallow = run(backend(), one_request({}, {.budget = 3, .root_token = 7}));
  EXPECT_EQ(shallow.n_nodes[0], 1);
  EXPECT_EQ(shallow.tokens, (std::vector<int32_t>{7, 7, 7, 7}));
}

TEST_P(TreeBuild, NanNeverEnters) {
  const Rows rows = run(backend(), one_request({{-0.1f, NAN}, {NAN, NAN}},
                                               {.budget = 5, .max_depth = 2, .max_rank = 2}));
  EXPECT_EQ(rows.n_nodes[0], 2);
}

std::string refusal(const Batch& batch, bool enough_workspace = true) {
  return test::message_of([&] { run(cpu_backend(), batch, enough_workspace); },
                          ErrorCode::kInvalidArgument);
}

TEST(TreeBuildArguments, RefusesImpossibleArguments) {
  const Batch good = one_request({{-1, -2}}, {.budget = 70, .max_depth = 1, .max_rank = 2});
  EXPECT_EQ(refusal(good), "no error");
  Batch bad = good;
  bad.n_words = 1;
  EXPECT_EQ(refusal(bad), "tree_build: n_words is 1, expected at least 2 for max_budget 70");
  bad = good;
  bad.max_budget = 1025;
  EXPECT_EQ(refusal(bad), "tree_build: max_budget is 1025, expected 0..1024");
  bad = good;
  bad.requests[0].budget = 71;
  EXPECT_EQ(refusal(bad), "tree_build: budget is 71, expected 0..70 (max_budget)");
  bad = good;
  bad.requests[0].max_depth = 2;
  EXPECT_EQ(refusal(bad), "tree_build: max_depth is 2, expected 0..1 (depth)");
  bad = good;
  bad.requests[0].max_rank = 3;
  EXPECT_EQ(refusal(bad), "tree_build: max_rank is 3, expected 1..2 (k)");
  bad = good;
  bad.requests[0].row_offset = -1;
  EXPECT_EQ(refusal(bad), "tree_build: row_offset is -1, expected 0 or more");
  EXPECT_NE(refusal(good, false).find("workspace.bytes is 0, expected at least"),
            std::string::npos);
  TreeBuildParams p;
  p.batch = 1;
  p.depth = 32;
  EXPECT_THROW(check(p), Error);
  p.depth = 1;
  p.k = 2;
  p.n_words = 1;
  EXPECT_THROW(check(p), Error);  // null arrays
}

}  // namespace
}  // namespace kdt::test
