#include "ops/tree_accept.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iterator>
#include <limits>
#include <numeric>

#include "base/error.h"
#include "cpu/philox.h"
#include "tests/errors.h"
#include "tests/ops/arrays.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/random.h"

namespace kdt::test {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(Philox, Random123KnownAnswers) {
  using Block = std::array<uint32_t, 4>;
  EXPECT_EQ(cpu::philox4x32({0, 0, 0, 0}, {0, 0}),
            (Block{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  EXPECT_EQ(cpu::philox4x32({~0u, ~0u, ~0u, ~0u}, {~0u, ~0u}),
            (Block{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(
      cpu::philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}),
      (Block{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

struct AcceptProblem {
  int vocab = 0, max_accepted = 1, n_rows = 0;
  std::vector<float> logits;
  std::vector<int32_t> tokens, positions, first_child, next_sibling, row_offset, n_nodes;
  std::vector<SamplingParams> sampling;
  std::vector<int32_t> targets;  // for Targets::kGiven
};

struct AcceptResult {
  std::vector<std::vector<int32_t>> accepted;  // per request, up to n_accepted
  std::vector<int32_t> bonus, status, targets;
};

// Logits that are not there: the walk over given targets.
enum class Targets { kNone, kDrawn, kGiven };

AcceptResult run(const Backend& backend, const AcceptProblem& a, Targets use) {
  Array<float> logits(backend, a.logits);
  Array<int32_t> tokens(backend, a.tokens), positions(backend, a.positions);
  Array<int32_t> first_child(backend, a.first_child), next_sibling(backend, a.next_sibling);
  Array<int32_t> row_offset(backend, a.row_offset), n_nodes(backend, a.n_nodes);
  Array<SamplingParams> sampling(backend, a.sampling);
  const size_t batch = a.row_offset.size();
  auto accepted = poisoned<int32_t>(backend, batch * a.max_accepted);
  auto n_accepted = poisoned<int32_t>(backend, batch), bonus = poisoned<int32_t>(backend, batch);
  auto status = poisoned<int32_t>(backend, batch);
  auto targets = use == Targets::kGiven ? Array<int32_t>(backend, a.targets)
                                        : poisoned<int32_t>(backend, a.n_rows);
  TreeAcceptParams p = {.logits = use == Targets::kGiven ? nullptr : logits.data(),
                        .tokens = tokens.data(),
                        .positions = positions.data(),
                        .first_child = first_child.data(),
                        .next_sibling = next_sibling.data(),
                        .row_offset = row_offset.data(),
                        .n_nodes = n_nodes.data(),
                        .sampling = sampling.data(),
                        .batch = static_cast<int32_t>(batch),
                        .n_rows = a.n_rows,
                        .vocab = a.vocab,
                        .max_accepted = a.max_accepted,
                        .accepted = accepted.data(),
                        .n_accepted = n_accepted.data(),
                        .bonus = bonus.data(),
                        .targets = use == Targets::kNone ? nullptr : targets.data(),
                        .status = status.data()};
  Scratch scratch(backend, tree_accept_workspace(backend, p));
  p.workspace = scratch.workspace();
  tree_accept(backend, p);
  AcceptResult r;
  const auto nodes = accepted.get(), counts = n_accepted.get();
  for (size_t b = 0; b < batch; ++b) {
    const int n = a.n_nodes[b] > 0 ? counts[b] : 0;
    EXPECT_TRUE(n >= 0 && n <= a.max_accepted);
    r.accepted.emplace_back(nodes.begin() + b * a.max_accepted,
                            nodes.begin() + b * a.max_accepted + std::clamp(n, 0, a.max_accepted));
  }
  r.bonus = bonus.get();
  r.status = status.get();
  r.targets = targets.get();
  return r;
}

// The definition: sort everything, keep prefixes, take the best noisy value. `margin` is how far
// the decision was from another one.
int32_t reference_token(const float* logits, int vocab, const SamplingParams& s, int position,
                        double* margin) {
  *margin = kInf;
  std::vector<int> ids;
  for (int i = 0; i < vocab; ++i) {
    if (std::isnan(logits[i]) || logits[i] == kInf) return -1;
    if (!std::isinf(logits[i])) ids.push_back(i);
  }
  if (ids.empty()) return -1;
  std::stable_sort(ids.begin(), ids.end(), [&](int x, int y) { return logits[x] > logits[y]; });
  if (s.temperature == 0) return ids[0];
  if (s.top_k > 0 && s.top_k < static_cast<int>(ids.size())) ids.resize(s.top_k);
  std::vector<double> p;
  for (int id : ids)
    p.push_back(std::exp((double{logits[id]} - logits[ids[0]]) / double{s.temperature}));
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  if (s.top_p < 1) {
    double sum = 0;
    size_t n = 0;
    while (n < ids.size() && (n == 0 || sum < s.top_p)) {
      sum += p[n++] / total;
      *margin = std::min(*margin, std::fabs(sum - s.top_p));
    }
    ids.resize(n);
  }
  while (ids.size() > 1 && p[ids.size() - 1] < s.min_p) {
    *margin = std::min(*margin, std::fabs(p[ids.size() - 1] - s.min_p));
    ids.pop_back();
  }
  if (s.min_p > 0) *margin = std::min(*margin, std::fabs(p[ids.size() - 1] - s.min_p));
  double best = -kInf;
  int32_t token = -1;
  std::sort(ids.begin(), ids.end());
  double second = -kInf;
  for (int id : ids) {
    const auto lanes =
        cpu::philox4x32({static_cast<uint32_t>(position), static_cast<uint32_t>(id / 4), 0, 0},
                        {static_cast<uint32_t>(s.seed), static_cast<uint32_t>(s.seed >> 32)});
    const double u = (lanes[id % 4] + 0.5) / 4294967296.0;
    const double value = double{logits[id]} / double{s.temperature} - std::log(-std::log(u));
    second = std::max(second, std::min(best, value));
    if (value > best) {
      best = value;
      token = id;
    }
  }
  *margin = std::min(*margin, best - second);
  return token;
}

// Random trees whose logits favour a child, under every kind of sampling.
AcceptProblem random_problem(Random& random) {
  AcceptProblem a;
  const int vocabs[] = {1, 2, 5, 63, 64, 65, 300, 1030, 2500};
  a.vocab = vocabs[random.integer(0, 8)];
  a.max_accepted = 12;
  const bool grid = random.integer(0, 1);
  for (int64_t b = random.integer(1, 4); b > 0; --b) {
    const int n = static_cast<int>(random.integer(0, 14));
    const int row = a.n_rows;
    a.row_offset.push_back(row);
    a.n_nodes.push_back(n);
    a.n_rows += n;
    std::vector<int> depth(n, 0);
    std::vector<int> last(n, -1);
    for (int i = 0; i < n; ++i) {
      const int parent = i == 0 ? -1 : static_cast<int>(random.integer(0, i - 1));
      a.tokens.push_back(static_cast<int32_t>(random.integer(0, a.vocab - 1)));
      a.first_child.push_back(-1);
      a.next_sibling.push_back(-1);
      if (parent >= 0) {
        depth[i] = depth[parent] + 1;
        (last[parent] < 0 ? a.first_child[row + parent] : a.next_sibling[row + last[parent]]) = i;
        last[parent] = i;
      }
      a.positions.push_back(1000 + depth[i]);
      const float scale = random.integer(0, 2) ? 2.0f : 9.0f;
      for (int v = 0; v < a.vocab; ++v) {
        float x = scale * random.normal();
        if (grid) x = std::round(x);
        a.logits.push_back(random.integer(0, 30) ? x : -static_cast<float>(kInf));
      }
    }
    for (int i = 1; i < n; ++i) {  // make the path through i likely
      if (random.integer(0, 1)) continue;
      const int parent = static_cast<int>(
          std::find_if(depth.begin(), depth.end(), [&](int d) { return d == depth[i] - 1; }) -
          depth.begin());
      a.logits[static_cast<size_t>(row + parent) * a.vocab + a.tokens[row + i]] = 30.0f;
    }
    SamplingParams s;
    s.temperature = random.integer(0, 4) ? 0.05f + 2.0f * static_cast<float>(random.uniform()) : 0;
    if (random.integer(0, 1)) s.top_k = static_cast<int32_t>(random.integer(1, 2 * a.vocab));
    if (random.integer(0, 1)) s.top_p = static_cast<float>(1.0 - random.uniform());
    if (random.integer(0, 1)) s.min_p = 0.3f * static_cast<float>(random.uniform());
    s.seed = random.bits();
    a.sampling.push_back(s);
  }
  if (a.n_rows > 0 && random.integer(0, 3) == 0) {
    const float bad[] = {NAN, static_cast<float>(kInf)};
    a.logits[random.integer(0, static_cast<int64_t>(a.logits.size()) - 1)] =
        bad[random.integer(0, 1)];
  }
  return a;
}

// Where another decision is this near, a backend may take it (tree_accept.h).
double near_margin(const Backend& backend) {
  return &backend == &cpu_backend() ? 1e-9 : 1e-6;
}

class TreeAccept : public OnBackends {};
INSTANTIATE_ON_BACKENDS(TreeAccept);

TEST_P(TreeAccept, RandomBatchesEqualTheDefinition) {
  int n_near = 0, n_draws = 0, n_bad = 0, longest = 0;
  const uint64_t n_seeds = seeds(is_cpu() ? 400 : 2000);
  for (uint64_t seed = 0; seed < n_seeds; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    AcceptProblem a = random_problem(random);
    const AcceptResult lazy = run(backend(), a, Targets::kNone);
    const AcceptResult full = run(backend(), a, Targets::kDrawn);
    a.targets = full.targets;
    const AcceptResult walked = run(backend(), a, Targets::kGiven);
    for (size_t b = 0; b < a.row_offset.size(); ++b) {
      if (a.n_nodes[b] == 0) continue;
      const int row = a.row_offset[b];
      std::vector<int32_t> targets(a.n_nodes[b]);
      bool near = false;
      for (int i = 0; i < a.n_nodes[b]; ++i, ++n_draws) {
        double margin;
        targets[i] = reference_token(&a.logits[static_cast<size_t>(row + i) * a.vocab], a.vocab,
                                     a.sampling[b], a.positions[row + i] + 1, &margin);
        if (margin < near_margin(backend())) {
          near = true;
          ++n_near;
          continue;
        }
        ASSERT_EQ(full.targets[row + i], targets[i]) << "node " << i;
      }
      if (near) continue;
      std::vector<int32_t> path;
      int node = 0, bonus = -1;
      while (node >= 0) {
        path.push_back(node);
        bonus = targets[node];
        int child = a.first_child[row + node];
        while (child >= 0 && a.tokens[row + child] != bonus) child = a.next_sibling[row + child];
        node = bonus < 0 ? -1 : child;
      }
      if (bonus < 0) path = {0};
      n_bad += bonus < 0;
      longest = std::max(longest, static_cast<int>(path.size()));
      for (const AcceptResult* r : {&lazy, &full, &walked}) {
        ASSERT_EQ(r->accepted[b], path);
        ASSERT_EQ(r->bonus[b], bonus);
        ASSERT_EQ(r->status[b], bonus < 0);
      }
    }
  }
  if (seeds(400) < 400) return;
  EXPECT_LT(n_near, n_draws / 200);
  EXPECT_GT(n_bad, 5);
  EXPECT_GT(longest, 3);
}

AcceptProblem golden_problem(const Golden& g) {
  AcceptProblem a;
  a.vocab = static_cast<int>(g.shape("logits")[1]);
  a.n_rows = static_cast<int>(g.shape("logits")[0]);
  a.max_accepted = g.scalar<int32_t>("max_accepted");
  a.logits = g.floats("logits");
  a.tokens = g.get<int32_t>("tokens");
  a.positions = g.get<int32_t>("positions");
  a.first_child = g.get<int32_t>("first_child");
  a.next_sibling = g.get<int32_t>("next_sibling");
  a.row_offset = g.get<int32_t>("row_offset");
  a.n_nodes = g.get<int32_t>("n_nodes");
  const auto temperature = g.get<float>("sampling.temperature"),
             top_p = g.get<float>("sampling.top_p");
  const auto min_p = g.get<float>("sampling.min_p");
  const auto top_k = g.get<int32_t>("sampling.top_k");
  const auto seed = g.get<uint64_t>("sampling.seed");
  for (size_t b = 0; b < seed.size(); ++b)
    a.sampling.push_back({temperature[b], top_p[b], min_p[b], top_k[b], seed[b]});
  return a;
}

void expect_golden(const Golden& g, const AcceptResult& got, size_t first, size_t first_row) {
  const auto accepted = g.get<int32_t>("accepted"), n_accepted = g.get<int32_t>("n_accepted");
  const auto bonus = g.get<int32_t>("bonus"), status = g.get<int32_t>("status");
  const int width = g.scalar<int32_t>("max_accepted");
  for (size_t b = 0; b < bonus.size(); ++b) {
    const std::vector<int32_t> path(accepted.begin() + b * width,
                                    accepted.begin() + b * width + n_accepted[b]);
    EXPECT_EQ(got.accepted[first + b], path) << "request " << b;
    EXPECT_EQ(got.bonus[first + b], bonus[b]) << "request " << b;
    EXPECT_EQ(got.status[first + b], status[b]) << "request " << b;
  }
  if (!g.has("targets")) return;
  const auto targets = g.get<int32_t>("targets");
  for (size_t row = 0; row < targets.size(); ++row)
    EXPECT_EQ(got.targets[first_row + row], targets[row]) << "row " << row;
}

TEST_P(TreeAccept, GoldenBundles) {
  for (const Golden& g : golden_bundles("tree_accept")) {
    for (const bool with_targets : {false, true}) {
      SCOPED_TRACE(g.label());
      const AcceptProblem a = golden_problem(g);
      AcceptResult got = run(backend(), a, Targets::kDrawn);
      if (!with_targets) {
        const std::vector<int32_t> targets = got.targets;
        got = run(backend(), a, Targets::kNone);
        got.targets = targets;
      }
      expect_golden(g, got, 0, 0);
    }
  }
}

TEST_P(TreeAccept, GoldenRequestsMixed) {
  AcceptProblem all;
  std::vector<Golden> bundles = golden_bundles("tree_accept");
  std::erase_if(bundles, [](const Golden& g) { return g.shape("logits")[1] != 50; });
  ASSERT_GT(bundles.size(), 3u);
  for (const Golden& g : bundles) {
    const AcceptProblem one = golden_problem(g);
    const auto extend = [](auto& x, const auto& y) { x.insert(x.end(), y.begin(), y.end()); };
    for (const int32_t offset : one.row_offset) all.row_offset.push_back(offset + all.n_rows);
    extend(all.logits, one.logits);
    extend(all.tokens, one.tokens);
    extend(all.positions, one.positions);
    extend(all.first_child, one.first_child);
    extend(all.next_sibling, one.next_sibling);
    extend(all.n_nodes, one.n_nodes);
    extend(all.sampling, one.sampling);
    all.n_rows += one.n_rows;
    all.max_accepted = std::max(all.max_accepted, one.max_accepted);
    all.vocab = one.vocab;
  }
  const AcceptResult got = run(backend(), all, Targets::kDrawn);
  size_t request = 0, row = 0;
  for (const Golden& g : bundles) {
    SCOPED_TRACE(g.label());
    expect_golden(g, got, request, row);
    request += g.shape("bonus")[0];
    row += g.shape("logits")[0];
  }
}

// One root whose logits have known probabilities, many positions: chi-square of the draws.
TEST_P(TreeAccept, DrawsFollowTheSoftmax) {
  constexpr int kDraws = 20000, kVocab = 7;
  AcceptProblem a;
  a.vocab = kVocab;
  a.n_rows = kDraws;
  const float logits[kVocab] = {0.0f, 1.0f, -1.0f, 0.5f, 2.0f, 0.25f, -0.5f};
  for (int i = 0; i < kDraws; ++i) {
    a.logits.insert(a.logits.end(), logits, logits + kVocab);
    a.tokens.push_back(0);
    a.positions.push_back(i);
    a.first_child.push_back(-1);
    a.next_sibling.push_back(-1);
    a.row_offset.push_back(i);
    a.n_nodes.push_back(1);
    a.sampling.push_back({.temperature = 0.8f, .seed = 42});
  }
  const AcceptResult r = run(backend(), a, Targets::kNone);
  std::vector<double> p(kVocab), count(kVocab);
  for (int v = 0; v < kVocab; ++v) p[v] = std::exp(logits[v] / 0.8);
  const double total = std::accumulate(p.begin(), p.end(), 0.0);
  for (const int32_t token : r.bonus) ++count[token];
  double chi_square = 0;
  for (int v = 0; v < kVocab; ++v) {
    const double expected = kDraws * p[v] / total;
    chi_square += (count[v] - expected) * (count[v] - expected) / expected;
  }
  EXPECT_LT(chi_square, 22.5) << "6 degrees of freedom, p = 0.001";
}

AcceptProblem root_alone(std::vector<float> logits, SamplingParams s) {
  AcceptProblem a;
  a.vocab = static_cast<int>(logits.size());
  a.n_rows = 1;
  a.logits = std::move(logits);
  a.tokens = {0};
  a.positions = {0};
  a.first_child = a.next_sibling = {-1};
  a.row_offset = {0};
  a.n_nodes = {1};
  a.sampling = {s};
  return a;
}

TEST_P(TreeAccept, BadRowsFailTheirRequest) {
  const float inf = static_cast<float>(kInf);
  for (const float temperature : {0.0f, 1.0f}) {
    for (const std::vector<float>& bad :
         {std::vector<float>{1, NAN, 2}, {1, inf, 2}, {-inf, -inf}}) {
      const AcceptResult r =
          run(backend(), root_alone(bad, {.temperature = temperature}), Targets::kNone);
      EXPECT_EQ(r.status[0], 1);
      EXPECT_EQ(r.bonus[0], -1);
      EXPECT_EQ(r.accepted[0], std::vector<int32_t>{0});
    }
  }
}

TEST_P(TreeAccept, LargeVocabulariesAreExact) {
  const SamplingParams samplers[] = {{.temperature = 1.0f, .seed = 3},
                                     {.temperature = 1.0f, .top_p = 0.95f, .seed = 4},
                                     {.temperature = 0.7f, .top_k = 50, .seed = 5},
                                     {.temperature = 1.0f, .min_p = 0.01f, .seed = 6},
                                     {.temperature = 8.0f, .top_p = 0.9f, .seed = 7},
                                     {.temperature = 1.0f, .top_p = 0.99f, .top_k = 700, .seed = 8},
                                     {}};
  int n_near = 0;
  constexpr int kDraws = 14;
  for (uint64_t seed = 0; seed < kDraws; ++seed) {
    Random random(seed);
    const int vocab = seed % 4 == 3 ? 262144 : 163840;
    std::vector<float> logits = random.normals(vocab, seed % 2 ? 4.0f : 1.0f);
    if (seed % 3 == 2)
      for (float& x : logits) x = rounded(x, DType::kBF16);  // thousands of ties
    const SamplingParams& s = samplers[seed % std::size(samplers)];
    double margin;
    const int32_t want = reference_token(logits.data(), vocab, s, 1, &margin);
    const int32_t got = run(backend(), root_alone(logits, s), Targets::kNone).bonus[0];
    if (margin < near_margin(backend()))
      ++n_near;
    else
      EXPECT_EQ(got, want) << "seed " << seed;
  }
  // A nucleus of a hundred thousand tokens often ends within the margin.
  std::printf("%d of %d draws have another token within the margin\n", n_near, kDraws);
  EXPECT_LE(n_near, 4);
}

TEST_P(TreeAccept, HundredRunsGiveTheSameBits) {
  Random random(9);
  const AcceptProblem a = root_alone(random.normals(is_cpu() ? 2000 : 163840, 3.0f),
                                     {.temperature = 1.0f, .top_p = 0.95f, .seed = 4});
  const AcceptResult first = run(backend(), a, Targets::kDrawn);
  for (int i = 0; i < 100; ++i) {
    const AcceptResult again = run(backend(), a, Targets::kDrawn);
    ASSERT_EQ(again.targets, first.targets);
    ASSERT_EQ(again.accepted, first.accepted);
  }
}

std::string refusal(const AcceptProblem& a) {
  return test::message_of([&] { run(cpu_backend(), a, Targets::kNone); },
                          ErrorCode::kInvalidArgument);
}

TEST(TreeAcceptArguments, RefusesImpossibleArguments) {
  const AcceptProblem good = root_alone({1, 2}, {});
  EXPECT_EQ(refusal(good), "no error");
  const auto with = [&](auto change) {
    AcceptProblem bad = good;
    change(bad);
    return refusal(bad);
  };
  EXPECT_EQ(with([](auto& a) { a.sampling[0].temperature = -1; }),
            "sampling: temperature is -1, expected 0 (greedy) or a positive number");
  EXPECT_EQ(with([](auto& a) { a.sampling[0].temperature = NAN; }),
            "sampling: temperature is nan, expected 0 (greedy) or a positive number");
  EXPECT_EQ(with([](auto& a) { a.sampling[0].top_p = 0; }),
            "sampling: top_p is 0, expected above 0, at most 1");
  EXPECT_EQ(with([](auto& a) { a.sampling[0].min_p = 1; }),
            "sampling: min_p is 1, expected 0 or more, below 1");
  EXPECT_EQ(with([](auto& a) { a.sampling[0].top_k = -1; }),
            "sampling: top_k is -1, expected 0 (off) or more");
  EXPECT_EQ(with([](auto& a) { a.first_child[0] = 0; }),
            "tree_accept: first_child is 0, expected -1 or 1..0 at node 0");
  EXPECT_EQ(with([](auto& a) { a.row_offset[0] = 1; }),
            "tree_accept: row_offset is 1, expected 0..0 for 1 nodes");
  EXPECT_EQ(with([](auto& a) { a.max_accepted = 0; }),
            "tree_accept: max_accepted is 0, expected 1 or more");
}

}  // namespace
}  // namespace kdt::test
