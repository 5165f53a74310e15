// The ops as whole rounds: eagerly on every backend against what plain decoding says, and on a GPU
// as one graph, replayed, against the CPU backend.
#include <gtest/gtest.h>

#include <cstdio>
#include <memory>

#include "tests/errors.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/round_pipeline.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

using M = TableModel;
const int kRounds = static_cast<int>(seeds(24));

const TableModel& model() {
  static const TableModel model(20);
  return model;
}

// The token from which `steps` successors lead to `token`.
int before(int token, int steps) {
  for (; steps > 0; --steps) {
    int previous = 0;
    while (M::successor(previous) != token) ++previous;
    token = previous;
  }
  return token;
}

// Prefixes that are about to enter a new page; the greedy tree, the sampled ones, plain decoding,
// one that fills its pages, and one that comes to a row of NaN.
enum { kGreedy, kSampled, kPlain, kFull, kNan };
const std::vector<RoundRequest> kRequests = {
    {.root = 17, .prefix = 61, .budget = 64, .max_len = 320},
    {.root = 400,
     .prefix = 127,
     .budget = 32,
     .max_len = 384,
     .sampling = {.temperature = 0.8f, .top_p = 0.95f, .seed = 7}},
    {.root = 900, .prefix = 50, .budget = 0, .max_len = 128},
    {.root = 5,
     .prefix = 200,
     .budget = 16,
     .max_len = 230,
     .sampling = {.temperature = 1.0f, .top_k = 20, .seed = 8}},
    {.root = before(M::kNanToken, 9), .prefix = 190, .budget = 24, .max_len = 320},
};

// What every round must hold on any backend; `start` is the prefix of the first.
void expect_sound(const RoundState& s, int round) {
  SCOPED_TRACE(testing::Message() << "round " << round);
  for (const int b : {kGreedy, kPlain, kNan}) {
    int token = kRequests[b].root;
    for (int i = kRequests[b].prefix; i < s.prefix_len[b]; ++i) token = M::successor(token);
    EXPECT_EQ(s.root_token[b], token) << "request " << b;
  }
  EXPECT_EQ(s.prefix_len[kPlain], kRequests[kPlain].prefix + round + 1);
  EXPECT_LT(s.prefix_len[kFull], kRequests[kFull].max_len);
  EXPECT_LE(s.prefix_len[kNan], kRequests[kNan].prefix + 9);
  for (size_t b = 0; b < kRequests.size(); ++b) {
    EXPECT_EQ(s.status[b], s.bonus[b] < 0) << "request " << b;
    EXPECT_TRUE(b == kNan || s.status[b] == 0) << "request " << b;
  }
}

// The cached rows of the second layer are those of their positions.
void expect_cached_positions(const RoundPipeline& pipeline, const RoundState& s) {
  constexpr size_t kRow = M::kWidth * 2;
  const auto* keys = reinterpret_cast<const char*>(model().position_keys.data());
  for (size_t b = 0; b < kRequests.size(); ++b) {
    for (int i = kRequests[b].prefix; i < s.prefix_len[b]; ++i) {
      const size_t row =
          (size_t(pipeline.n_pages()) + pipeline.page(int(b), i)) * kPageTokens + i % kPageTokens;
      ASSERT_EQ(std::memcmp(&s.pages[row * kRow], keys + i * kRow, kRow), 0)
          << "request " << b << ", position " << i;
    }
  }
}

void expect_progress(const RoundState& s) {
  if (kRounds < 24) return;
  for (const int b : {kGreedy, kSampled}) {
    EXPECT_GT(s.prefix_len[b], kRequests[b].prefix + 2 * kRounds) << "few tokens were accepted";
  }
  EXPECT_GE(s.prefix_len[kFull], kRequests[kFull].max_len - M::kDepth - 1) << "pages stay empty";
  EXPECT_EQ(s.status[kNan], 1);
}

class Round : public OnBackends {};
INSTANTIATE_ON_BACKENDS(Round);

TEST_P(Round, SaysWhatPlainDecodingSays) {
  RoundPipeline pipeline(backend(), model(), kRequests);
  RoundState state;
  for (int round = 0; round < kRounds; ++round) {
    pipeline.enqueue({});
    state = pipeline.state();
    expect_sound(state, round);
  }
  expect_cached_positions(pipeline, state);
  expect_progress(state);
}

void expect_same_attention(const RoundPipeline& pipeline, const RoundState& got,
                           const RoundState& want) {
  for (int layer = 0; layer < M::kLayers; ++layer) {
    std::vector<float> out, ref;
    double lse_error = 0;
    for (size_t b = 0; b < kRequests.size(); ++b) {
      const size_t first = size_t(pipeline.row_offset()[b]) * M::kHeads;
      const size_t end = first + size_t(want.n_nodes[b]) * M::kHeads;
      for (size_t i = first; i < end; ++i)
        lse_error =
            std::max(lse_error, std::abs(double{got.lse[layer][i]} - double{want.lse[layer][i]}));
      const auto append = [&](std::vector<float>& to, const std::vector<float>& from) {
        to.insert(to.end(), from.begin() + first * M::kLatent, from.begin() + end * M::kLatent);
      };
      append(out, got.out[layer]);
      append(ref, want.out[layer]);
    }
    EXPECT_LE(relative_error(out.data(), ref.data(), out.size()), tolerance(DType::kBF16, 400));
    EXPECT_LE(lse_error, lse_tolerance(DType::kBF16));
  }
}

void expect_same(const RoundPipeline& pipeline, const RoundState& got, const RoundState& want) {
  ASSERT_EQ(got.n_nodes, want.n_nodes);
  ASSERT_EQ(got.tokens, want.tokens);
  EXPECT_EQ(got.parents, want.parents);
  EXPECT_EQ(got.depths, want.depths);
  EXPECT_EQ(got.positions, want.positions);
  EXPECT_EQ(got.first_child, want.first_child);
  EXPECT_EQ(got.next_sibling, want.next_sibling);
  EXPECT_EQ(got.ancestors, want.ancestors);
  for (size_t i = 0; i < want.scores.size(); ++i)  // log_z may differ by 2 ulp
    EXPECT_NEAR(got.scores[i], want.scores[i], 1e-5);
  expect_same_attention(pipeline, got, want);
  EXPECT_EQ(got.targets, want.targets);
  EXPECT_EQ(got.accepted, want.accepted);
  EXPECT_EQ(got.n_accepted, want.n_accepted);
  EXPECT_EQ(got.bonus, want.bonus);
  EXPECT_EQ(got.status, want.status);
  EXPECT_TRUE(got.pages == want.pages) << "cache contents differ";
  EXPECT_TRUE(got.features == want.features) << "features differ";
  EXPECT_EQ(got.prefix_len, want.prefix_len);
  EXPECT_EQ(got.root_token, want.root_token);
  EXPECT_EQ(got.max_depth, want.max_depth);
}

// The first round is enqueued op by op, the others are replays of one graph.
TEST(RoundGraph, ReplaysEqualTheRoundsOfTheCpu) {
  if (!cuda_backend()) GTEST_SKIP() << "no CUDA in this build, or no GPU in this machine";
  struct Replayed {
    const char* name;
    std::unique_ptr<RoundPipeline> pipeline;
    std::function<void(Stream)> replay;
  };
  std::vector<Replayed> all;
  for (const char* name : {"", "simt", "mma", "mma_small", "sm90"})
    if (const Backend* backend = cuda_backend_with_attention(name))
      all.push_back({name, std::make_unique<RoundPipeline>(*backend, model(), kRequests), {}});
  RoundPipeline cpu(cpu_backend(), model(), kRequests);
  for (int round = 0; round < kRounds; ++round) {
    cpu.enqueue({});
    const RoundState want = cpu.state();
    expect_sound(want, round);
    for (Replayed& r : all) {
      SCOPED_TRACE(testing::Message() << "round " << round << ", attention '" << r.name << "'");
      if (round == 0)
        r.pipeline->enqueue({});
      else
        r.replay({});
      expect_same(*r.pipeline, r.pipeline->state(), want);
      if (testing::Test::HasFailure()) return;
      if (round == 0)
        r.replay = cuda_backend()->capture([&](Stream stream) { r.pipeline->enqueue(stream); });
    }
    if (round == kRounds - 1) expect_progress(want);
  }
  std::printf("%zu graphs, %d rounds\n", all.size(), kRounds);
}

class NextRound : public OnBackends {};
INSTANTIATE_ON_BACKENDS(NextRound);

TEST_P(NextRound, StaysWhereATargetIsMissingOrThePagesEnd) {
  Array<int32_t> n_accepted(backend(), {3, 1, 7, 2, 5}), bonus(backend(), {9, 0, 4, -1, 8});
  Array<int32_t> max_len(backend(), {64, 200, 107, 64, 106});
  Array<int32_t> prefix_len(backend(), {40, 190, 100, 30, 100});
  Array<int32_t> root_token(backend(), {1, 2, 3, 4, 5}),
      max_depth = poisoned<int32_t>(backend(), 5);
  next_round(backend(), {.n_accepted = n_accepted.data(),
                         .bonus = bonus.data(),
                         .max_len = max_len.data(),
                         .prefix_len = prefix_len.data(),
                         .root_token = root_token.data(),
                         .max_depth = max_depth.data(),
                         .batch = 5,
                         .depth = 15});
  EXPECT_EQ(prefix_len.get(), (std::vector<int32_t>{43, 191, 100, 30, 105}));
  EXPECT_EQ(root_token.get(), (std::vector<int32_t>{9, 0, 3, 4, 8}));
  EXPECT_EQ(max_depth.get(), (std::vector<int32_t>{15, 8, 6, 15, 0}));
}

TEST(NextRoundArguments, NamesWhatIsMissing) {
  int32_t x = 0;
  const NextRoundParams good = {&x, &x, &x, &x, &x, &x, 1, 15};
  const auto refuse = [&](const std::string& part, auto change) {
    NextRoundParams p = good;
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "next_round: " + part,
                 [&] { next_round(cpu_backend(), p); });
  };
  refuse("batch is -1", [](NextRoundParams& p) { p.batch = -1; });
  refuse("depth is 32, expected 0..31", [](NextRoundParams& p) { p.depth = 32; });
  refuse("max_len is null", [](NextRoundParams& p) { p.max_len = nullptr; });
  refuse("prefix_len is null", [](NextRoundParams& p) { p.prefix_len = nullptr; });
}

}  // namespace
}  // namespace kdt::test
