// The implementations of verify_attention behind the CUDA backend: how they cut batches, and that
// results do not depend on what is done beside them.
#include <algorithm>
#include <map>

#include "tests/errors.h"
#include "tests/ops/attention_implementations.h"

namespace kdt::test {
namespace {

// Long and short requests, large and small trees, splits and whole tiles in one call.
AttentionProblem mixed_batch(uint64_t seed, DType kv_dtype, int heads) {
  Random random(seed);
  AttentionProblem a = mla(heads, DType::kBF16, kv_dtype, DType::kF32);
  a.n_words = 3;
  const int sizes[][2] = {{3000, 65}, {0, 1}, {64, 17}, {0, 0}, {700, 130}, {31, 33}, {5000, 1}};
  for (const auto& [prefix, n] : sizes)
    add_request(a, random, prefix, n, n ? random_parents(random, n, 15) : std::vector<int>{});
  return a;
}

// Every implementation is near the CPU's result, with the same bits in `repeats` more calls. Those
// alternate with calls of other queries, whose parts nobody may take for theirs, by the same plan.
void expect_same_bits(const AttentionProblem& a, int repeats, SharedScratch& scratch) {
  const AttentionResult want = truth(a);
  AttentionCall call(*cuda_backend(), a);
  std::vector<float> others = a.q;
  for (float& x : others) x = -x;
  on_each(a, [&](const std::string&, const Backend& backend) {
    const std::vector<float>* queries[] = {&others, &a.q};
    AttentionResult first[2];
    for (int i = 0; i < 2; ++i) {
      call.set_queries(*queries[i]);
      first[i] = call.run(backend, &scratch);
    }
    expect_near(a, first[1], want);
    EXPECT_FALSE(first[0] == first[1]);
    for (int i = 0; i < repeats; ++i) {
      call.set_queries(*queries[i % 2]);
      ASSERT_TRUE(call.run(backend, &scratch, raw_memory || i % 50 == 3) == first[i % 2])
          << "repeat " << i;
    }
  });
}

TEST_F(AttentionImplementations, RepeatsGiveTheSameBits) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3})
    expect_same_bits(mixed_batch(7, kv, 8), 100, scratch_);
}

TEST_F(AttentionImplementations, ACallThatNobodyPlannedIsRefused) {
  const Backend* sm90 = implementation("sm90");
  if (!sm90) GTEST_SKIP() << "not for this GPU";
  AttentionCall call(*cuda_backend(), mixed_batch(8, DType::kBF16, 5));
  expect_error(ErrorCode::kInvalidArgument, "call verify_attention_plan with them first",
               [&] { call.run(*sm90, nullptr, false); });
}

// Parts that are nothing but the last two nodes, which most rows do not see.
AttentionProblem parts_that_few_rows_see() {
  Random random(9);
  AttentionProblem a = mla(4, DType::kBF16, DType::kBF16, DType::kF32);
  a.n_words = 2;
  for (int b = 0; b < 27; ++b) add_request(a, random, 64, 66, random_parents(random, 66, 12));
  return a;
}

TEST_F(AttentionImplementations, ItemsOfTwoGangs) {
  for (const auto& [name, a] :
       {std::pair("equal lengths", items_of_two_gangs(DType::kBF16, DType::kBF16, 0)),
        {"lengths 9 apart", items_of_two_gangs(DType::kF16, DType::kF32, 9)},
        {"parts that few rows see", parts_that_few_rows_see()}}) {
    SCOPED_TRACE(name);
    expect_same_bits(a, 5, scratch_);
  }
}

// Every thread block does at most one combine in the batches above.
TEST_F(AttentionImplementations, ThreadBlocksThatCombineTwice) {
  const int shapes[][4] = {{15, 33, 4, 1500}, {23, 17, 8, 1000}, {1, 9, 2, 129}};
  for (const auto& [n_requests, nodes, heads, prefix] : shapes) {
    SCOPED_TRACE(::testing::Message() << n_requests << " requests of " << nodes << " nodes");
    Random random(10);
    AttentionProblem a = mla(heads, DType::kBF16, DType::kBF16, DType::kBF16);
    a.n_words = 1;
    for (int b = 0; b < n_requests; ++b)
      add_request(a, random, prefix, nodes, random_parents(random, nodes, 12));
    expect_same_bits(a, 6, scratch_);
  }
}

// For the sanitizers, to which the other implementations' work on so many rows would take too long.
TEST_F(AttentionImplementations, SmallCasesOfTwoGangs) {
  const Backend* sm90 = implementation("sm90");
  if (!sm90) GTEST_SKIP() << "not for this GPU";
  const AttentionProblem a = items_of_two_gangs(DType::kBF16, DType::kBF16, 0);
  AttentionCall call(*cuda_backend(), a);
  expect_near(a, call.run(*sm90, &scratch_), truth(a));
}

// Request b of a batch as a batch of its own; its pages keep their places.
AttentionProblem only(const AttentionProblem& a, size_t b) {
  AttentionProblem one = a;
  const int row = a.row_offset[b], n = a.n_nodes[b], width = a.width();
  const auto cut = [](auto& x, int64_t first, int64_t count) {
    if (x.empty()) return;
    x = {x.begin() + first, x.begin() + first + count};
  };
  one.row_offset = {0};
  one.n_nodes = {n};
  one.prefix_len = {a.prefix_len[b]};
  one.n_rows = n;
  cut(one.q, int64_t{row} * a.heads * width, int64_t{n} * a.heads * width);
  cut(one.tail, int64_t{row} * width, int64_t{n} * width);
  cut(one.tail_scales, row, n);
  cut(one.ancestors, int64_t{row} * a.n_words, int64_t{n} * a.n_words);
  cut(one.block_table, static_cast<int64_t>(b) * a.max_blocks, a.max_blocks);
  return one;
}

TEST_F(AttentionImplementations, BatchInvariantBits) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    AttentionProblem a = mixed_batch(8, kv, 8);
    a.batch_invariant = true;
    const AttentionResult want = truth(a);
    AttentionCall call(*cuda_backend(), a);
    std::map<std::string, AttentionResult> batch;
    on_each(a, [&](const std::string& name, const Backend& backend) {
      batch[name] = call.run(backend, &scratch_);
      expect_near(a, batch[name], want);
    });
    for (size_t b = 0; b < a.row_offset.size(); ++b) {
      const AttentionProblem one = only(a, b);
      AttentionCall one_call(*cuda_backend(), one);
      const size_t first = static_cast<size_t>(a.row_offset[b]) * a.heads;
      on_each(one, [&](const std::string& name, const Backend& backend) {
        const AttentionResult alone = one_call.run(backend, &scratch_), &all = batch[name];
        EXPECT_TRUE(std::equal(alone.lse.begin(), alone.lse.end(), all.lse.begin() + first))
            << "request " << b;
        EXPECT_TRUE(
            std::equal(alone.out.begin(), alone.out.end(), all.out.begin() + first * a.latent))
            << "request " << b;
      });
    }
  }
}

}  // namespace
}  // namespace kdt::test
