// The implementations of verify_attention behind the CUDA backend, at the shapes of MLA, against
// the CPU backend and against float64. Without a GPU they report themselves skipped.
#include <gtest/gtest.h>

#include <array>
#include <cstdio>
#include <map>

#include "tests/ops/attention_golden.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

// "cuda" is the choice by shape.
constexpr const char* kImplementations[] = {"cuda", "simt", "mma", "mma_small", "sm90"};

const Backend* implementation(const std::string& name) {
  return cuda_backend_with_attention(name == "cuda" ? "" : name);
}

class AttentionImplementations : public testing::Test {
 protected:
  void SetUp() override {
    if (!cuda_backend()) GTEST_SKIP() << "no CUDA in this build, or no GPU in this machine";
  }

  SharedScratch scratch_;  // every call of a test leaves its remains to the next
};

// Calls check(name, backend) for every implementation that this machine has and that takes such a
// problem.
template <typename Check>
void on_each(const AttentionProblem& a, const Check& check) {
  for (const std::string name : kImplementations) {
    const Backend* backend = implementation(name);
    const bool hopper = name == "sm90";
    if (!backend || (hopper && (a.kv_dtype == DType::kF8E4M3 || a.batch_invariant))) continue;
    SCOPED_TRACE(name);
    check(name, *backend);
  }
}

AttentionProblem mla(int heads, DType q_dtype, DType kv_dtype, DType out_dtype) {
  AttentionProblem a;
  a.heads = heads;
  a.latent = 512;
  a.rope = 64;
  a.scale = 0.1446796f;
  a.q_dtype = q_dtype;
  a.kv_dtype = kv_dtype;
  a.out_dtype = out_dtype;
  return a;
}

// The narrowest type that queries, weights or outputs pass through; codes of FP8 are exact.
DType narrowest(const AttentionProblem& a) {
  for (const DType t : {a.q_dtype, a.kv_dtype, a.out_dtype})
    if (t == DType::kBF16 || t == DType::kF8E4M3) return DType::kBF16;
  return a.q_dtype == DType::kF32 && a.out_dtype == DType::kF32 ? DType::kF32 : DType::kF16;
}

struct Errors {
  double out = 0.0, lse = 0.0;
};

// How far the used rows are from `want`; infinite where other rows were written or infinities
// differ.
Errors errors(const AttentionProblem& a, const AttentionResult& got, const AttentionResult& want) {
  const float poison = poisoned<float>(cpu_backend(), 1).get()[0];
  std::vector<float> out, ref;
  Errors e;
  for (int query = 0; query < a.n_rows * a.heads; ++query) {
    const auto first = static_cast<ptrdiff_t>(query) * a.latent;
    if (!a.used(query / a.heads)) {
      if (got.lse[query] != poison) e.lse = kInf;
      continue;
    }
    out.insert(out.end(), got.out.begin() + first, got.out.begin() + first + a.latent);
    ref.insert(ref.end(), want.out.begin() + first, want.out.begin() + first + a.latent);
    const double difference = std::abs(double{got.lse[query]} - want.lse[query]);
    if (got.lse[query] != want.lse[query]) e.lse = std::max(e.lse, difference);
    if (std::isnan(difference) && got.lse[query] != want.lse[query]) e.lse = kInf;
  }
  e.out = relative_error(out.data(), ref.data(), out.size());
  return e;
}

Errors expect_near(const AttentionProblem& a, const AttentionResult& got,
                   const AttentionResult& want) {
  const Errors e = errors(a, got, want);
  EXPECT_LE(e.out, tolerance(narrowest(a), 4000));
  EXPECT_LE(e.lse, lse_tolerance(narrowest(a)));
  return e;
}

// The CPU backend's result in fp32.
AttentionResult truth(AttentionProblem a) {
  a.out_dtype = DType::kF32;
  return run(cpu_backend(), a);
}

AttentionProblem random_case(uint64_t seed) {
  Random random(seed);
  const int heads[] = {1, 2, 3, 4, 5, 8, 8, 8, 8, 16, 16, 16, 32, 64, 128};
  const DType types[][2] = {{DType::kBF16, DType::kBF16},
                            {DType::kBF16, DType::kBF16},
                            {DType::kBF16, DType::kBF16},
                            {DType::kF16, DType::kF16},
                            {DType::kBF16, DType::kF8E4M3}};
  const auto& type = types[random.integer(0, 4)];
  AttentionProblem a = mla(heads[random.integer(0, 14)], type[0], type[1],
                           random.integer(0, 1) ? DType::kF32 : type[0]);
  a.batch_invariant = random.integer(0, 5) == 0;
  const bool chain = random.integer(0, 4) == 0;
  a.n_words = chain ? 0 : static_cast<int>(random.integer(2, 3));
  const int n_requests = static_cast<int>(random.integer(1, 3));
  const int largest = a.heads >= 32 ? 4 : a.heads >= 8 ? 20 : 70;
  const int edges[] = {0, 1, 31, 33, 63, 64, 65, 100, 127, 128, 300, 600};
  for (int b = 0; b < n_requests; ++b) {
    const int n = static_cast<int>(random.integer(0, largest));
    add_request(a, random, edges[random.integer(0, random.integer(0, 3) ? 8 : 11)], n,
                chain || n == 0 ? std::vector<int>{} : random_parents(random, n, 12),
                random.integer(0, 3) ? 1.0f : 3.0f);
  }
  return a;
}

// Random trees and chains on every implementation of this build and machine, with a workspace that
// holds what earlier cases left. Returns how many results were compared.
int run_random_cases(uint64_t first, uint64_t count, SharedScratch& scratch) {
  std::map<std::string, Errors> worst;
  int compared = 0;
  for (uint64_t seed = first; seed < first + count && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    const AttentionProblem a = random_case(seed);
    const AttentionResult want = truth(a);
    AttentionCall call(*cuda_backend(), a);
    on_each(a, [&](const std::string& name, const Backend& backend) {
      const Errors e = expect_near(a, call.run(backend, &scratch), want);
      worst[name].out = std::max(worst[name].out, e.out);
      worst[name].lse = std::max(worst[name].lse, e.lse);
      ++compared;
    });
  }
  for (const auto& [name, e] : worst)
    std::printf("%s, seeds %llu..%llu: largest relative error %.2e, of lse %.2e\n", name.c_str(),
                static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(first + count - 1), e.out, e.lse);
  return compared;
}

TEST_F(AttentionImplementations, RandomCasesMatchTheCpu) {
  EXPECT_GE(run_random_cases(0, 500, scratch_), 2000);
}

// For the sanitizers: every kernel and variant of every implementation on prefixes of at most 256
// and trees of at most 65 nodes. Many rows a request and few, one part of the keys and several, a
// batch of one and of three, trees and chains, both cuts of the keys, all types.
TEST_F(AttentionImplementations, SmallCases) {
  const DType types[][3] = {{DType::kBF16, DType::kBF16, DType::kBF16},
                            {DType::kF16, DType::kF16, DType::kF32},
                            {DType::kBF16, DType::kF8E4M3, DType::kF32}};
  struct Case {
    int heads;
    bool chain, batch_invariant;
    std::vector<std::pair<int, int>> requests;  // prefix, nodes
  };
  const Case cases[] = {{8, false, false, {{256, 65}, {0, 1}, {33, 17}}},
                        {1, false, false, {{200, 5}, {0, 0}, {64, 33}}},
                        {2, true, false, {{129, 9}}},
                        {16, false, true, {{127, 17}, {256, 1}}}};
  for (const auto& [q, kv, out] : types) {
    for (const Case& c : cases) {
      Random random(31);
      AttentionProblem a = mla(c.heads, q, kv, out);
      a.batch_invariant = c.batch_invariant;
      a.n_words = c.chain ? 0 : 2;
      for (const auto& [prefix, n] : c.requests)
        add_request(a, random, prefix, n,
                    c.chain || n == 0 ? std::vector<int>{} : random_parents(random, n, 9));
      // Wide block tables, so that a choice by the longest possible request sees long ones.
      widen_table(a, 4096);
      const AttentionResult want = truth(a);
      AttentionCall call(*cuda_backend(), a);
      on_each(a, [&](const std::string&, const Backend& backend) {
        expect_near(a, call.run(backend, &scratch_), want);
      });
    }
  }
}

// Reads memory that nothing has written, if KDT_TEST_UNWRITTEN is set: a tool must report it.
TEST_F(AttentionImplementations, DISABLED_ReadsUnwrittenMemory) {
  const Backend& backend = *cuda_backend();
  auto a = Array<float>::unwritten(backend, 64), b = poisoned<float>(backend, 64);
  auto out = poisoned<float>(backend, 64), lse = poisoned<float>(backend, 1);
  lse_merge(backend, {.out_a = a.data(),
                      .lse_a = lse.data(),
                      .out_b = b.data(),
                      .lse_b = lse.data(),
                      .out = out.data(),
                      .lse = lse.data(),
                      .n_rows = 1,
                      .dim = 64});
}

TEST_F(AttentionImplementations, GoldenBundlesInTheirOwnType) {
  for (const Golden& g : golden_bundles("verify_attention")) {
    SCOPED_TRACE(g.label());
    AttentionProblem a = golden_problem(g, DType::kBF16);
    if (a.latent != 512 || a.rope != 64) continue;
    const AttentionResult want = {g.get<float>("out"), g.get<float>("lse")};
    AttentionCall call(*cuda_backend(), a);
    for (const bool invariant : {false, true}) {
      a.batch_invariant = invariant;
      on_each(a, [&](const std::string&, const Backend& backend) {
        expect_near(a, call.run(backend, &scratch_), want);
      });
    }
  }
}

// All golden trees of one head count and scale in one call.
TEST_F(AttentionImplementations, GoldenRequestsMixed) {
  for (const int heads : {4, 8, 16}) {
    AttentionProblem all;
    AttentionResult want;
    for (const Golden& g : golden_bundles("verify_attention")) {
      const AttentionProblem one = golden_problem(g, DType::kBF16);
      if (one.latent != 512 || one.heads != heads || one.n_words != 1) continue;
      if (!all.q.empty() && one.scale != all.scale) continue;
      append(all, one);
      const std::vector<float> out = g.get<float>("out"), lse = g.get<float>("lse");
      want.out.insert(want.out.end(), out.begin(), out.end());
      want.lse.insert(want.lse.end(), lse.begin(), lse.end());
    }
    ASSERT_GT(all.row_offset.size(), 1u) << heads << " heads";
    AttentionCall call(*cuda_backend(), all);
    on_each(all, [&](const std::string&, const Backend& backend) {
      expect_near(all, call.run(backend, &scratch_), want);
    });
  }
}

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

// Every implementation is near the CPU's result, with the same bits in `repeats` more calls.
void expect_same_bits(const AttentionProblem& a, int repeats, SharedScratch& scratch) {
  const AttentionResult want = truth(a);
  AttentionCall call(*cuda_backend(), a);
  on_each(a, [&](const std::string&, const Backend& backend) {
    const AttentionResult first = call.run(backend, &scratch);
    expect_near(a, first, want);
    for (int i = 0; i < repeats; ++i)
      ASSERT_TRUE(call.run(backend, &scratch) == first) << "repeat " << i;
  });
}

TEST_F(AttentionImplementations, RepeatsGiveTheSameBits) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3})
    expect_same_bits(mixed_batch(7, kv, 8), 100, scratch_);
}

// More items than multiprocessors: two in five and more are left by one gang of thread blocks to
// the next (AttentionSchedule.GangsLeaveItemsToTheNextOne). Lengths are `step` apart.
AttentionProblem items_of_two_gangs(DType type, DType out_dtype, int step) {
  Random random(9 + step);
  AttentionProblem a = mla(16, type, type, out_dtype);
  a.n_words = 1;
  for (int b = 0; b < 28; ++b)
    add_request(a, random, 200 + step * b, 17, random_parents(random, 17, 12), 3.0f);
  return a;
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

// Rows whose output has NaN must be those that see the bad rows, and no other row may change a bit.
void expect_nan_where(const AttentionProblem& a, const AttentionResult& got,
                      const AttentionResult& clean, const std::vector<bool>& hit) {
  const size_t per_row = static_cast<size_t>(a.heads) * a.latent;
  for (size_t row = 0; row < hit.size(); ++row) {
    size_t n_right = 0;
    for (size_t i = row * per_row; i < (row + 1) * per_row; ++i)
      n_right += hit[row] ? std::isnan(got.out[i]) : got.out[i] == clean.out[i];
    EXPECT_EQ(n_right, per_row) << "row " << row << (hit[row] ? ", which sees" : ", blind to")
                                << " the bad row";
    for (int h = 0; h < a.heads && !hit[row]; ++h)
      EXPECT_EQ(got.lse[row * a.heads + h], clean.lse[row * a.heads + h]) << "row " << row;
    if (testing::Test::HasFailure()) return;
  }
}

TEST_F(AttentionImplementations, NanStaysWithTheRowsThatSeeIt) {
  // heads, prefix, nodes of the first request: one item of rows and many, one tail block and two.
  const int shapes[][3] = {{4, 40, 7}, {16, 70, 40}, {2, 300, 100}, {8, 0, 65}, {64, 129, 9}};
  for (const DType type : {DType::kBF16, DType::kF16, DType::kF8E4M3}) {
    for (const auto& [heads, prefix, n] : shapes) {
      SCOPED_TRACE(testing::Message() << dtype_name(type) << ", " << heads << " heads, prefix "
                                      << prefix << ", " << n << " nodes");
      Random random(13);
      const bool fp8 = type == DType::kF8E4M3;
      AttentionProblem a = mla(heads, fp8 ? DType::kBF16 : type, type, DType::kF32);
      a.n_words = 2;
      add_request(a, random, prefix, n, random_parents(random, n, 6));
      add_request(a, random, 64, 2, {-1, 0});
      // What lies behind a prefix in its last page belongs to nobody.
      for (int i = prefix; i % 64 != 0; ++i) {
        const size_t row = static_cast<size_t>(a.block_table[i / 64]) * 64 + i % 64;
        std::fill_n(&a.pages[row * a.width()], a.width(), NAN);
      }
      std::map<std::string, AttentionResult> clean;
      AttentionCall call(*cuda_backend(), a);
      on_each(a, [&](const std::string& name, const Backend& backend) {
        clean[name] = call.run(backend, &scratch_);
      });
      for (const float bad_value : {NAN, kInf}) {
        if (fp8 && bad_value == kInf) continue;  // which has no code
        const int key = n / 3, query = n / 2 + 1, width = a.width();
        AttentionProblem bad = a;
        std::fill_n(&bad.tail[key * width], width, bad_value);
        std::fill_n(&bad.q[query * heads * width], heads * width, NAN);
        std::vector<bool> hit(n + 2);
        for (int row = 0; row < n; ++row) hit[row] = row == query || a.sees(0, row, key);
        AttentionCall bad_call(*cuda_backend(), bad);
        on_each(bad, [&](const std::string& name, const Backend& backend) {
          expect_nan_where(bad, bad_call.run(backend, &scratch_), clean[name], hit);
        });
      }
      if (prefix == 0) continue;
      // A bad prefix key spoils its request and no other.
      AttentionProblem bad = a;
      std::fill_n(&bad.pages[static_cast<size_t>(a.block_table[0]) * 64 * a.width()], a.width(),
                  NAN);
      std::vector<bool> hit(n + 2, true);
      hit[n] = hit[n + 1] = false;
      AttentionCall bad_call(*cuda_backend(), bad);
      on_each(bad, [&](const std::string& name, const Backend& backend) {
        expect_nan_where(bad, bad_call.run(backend, &scratch_), clean[name], hit);
      });
    }
  }
}

TEST_F(AttentionImplementations, NanStaysWithItsRequestAmongItemsOfTwoGangs) {
  const AttentionProblem a = items_of_two_gangs(DType::kBF16, DType::kF32, 0);
  AttentionProblem bad = a;
  AttentionCall call(*cuda_backend(), a);
  std::vector<bool> hit(a.n_rows);
  for (const int b : {3, 14, 27}) {  // a key of the first page, of the last one, of the tail
    const int key = b == 3 ? 5 : 195, width = a.width();
    const size_t page = a.block_table[static_cast<size_t>(b) * a.max_blocks + key / 64];
    std::fill_n(b < 27 ? &bad.pages[(page * 64 + key % 64) * width]
                       : &bad.tail[static_cast<size_t>(a.row_offset[b]) * width],
                width, NAN);
    std::fill_n(hit.begin() + a.row_offset[b], 17, true);  // all see it, of the tail the root
  }
  AttentionCall bad_call(*cuda_backend(), bad);
  on_each(bad, [&](const std::string&, const Backend& backend) {
    expect_nan_where(bad, bad_call.run(backend, &scratch_), call.run(backend, &scratch_), hit);
  });
}

// One infinite element of a tail row: whether its score is inf or -inf depends on the query. A row
// is NaN where the CPU backend's is, and rows that are blind to the key do not change a bit.
TEST_F(AttentionImplementations, AnInfiniteElementOfTheTailIsNanWhereItIsOnTheCpu) {
  for (const DType type : {DType::kBF16, DType::kF16}) {
    for (const auto& [heads, prefix, n] : {std::array{4, 40, 7}, {16, 70, 40}, {64, 129, 9}}) {
      SCOPED_TRACE(testing::Message() << dtype_name(type) << ", " << heads << " heads, prefix "
                                      << prefix << ", " << n << " nodes, seed 19");
      Random random(19);
      AttentionProblem a = mla(heads, type, type, DType::kF32);
      a.n_words = 1;
      add_request(a, random, prefix, n, random_parents(random, n, 6));
      AttentionCall call(*cuda_backend(), a);
      AttentionProblem bad = a;
      const int key = n / 3;
      bad.tail[key * a.width() + 300] = kInf;
      AttentionCall bad_call(*cuda_backend(), bad);
      const AttentionResult want = run(cpu_backend(), bad);
      on_each(a, [&](const std::string&, const Backend& backend) {
        const AttentionResult clean = call.run(backend, &scratch_);
        const AttentionResult got = bad_call.run(backend, &scratch_);
        size_t n_nan = 0, n_finite = 0, n_wrong = 0;
        for (size_t i = 0; i < got.out.size(); ++i) {
          const int row = static_cast<int>(i / a.latent / heads);
          n_nan += std::isnan(want.out[i]);
          n_finite += !std::isnan(got.out[i]);
          if (std::isnan(want.out[i])) n_wrong += !std::isnan(got.out[i]);
          if (!a.sees(0, row, key)) n_wrong += got.out[i] != clean.out[i];
        }
        EXPECT_EQ(n_wrong, 0u);
        EXPECT_GT(n_nan, 0u);
        EXPECT_GT(n_finite, 0u);
      });
    }
  }
}

// Queries and scales of keys far from 1, and queries of 0, next to one another.
TEST_F(AttentionImplementations, Fp8ScalesAndQueriesOfManyMagnitudes) {
  for (const auto& [heads, prefix, n] : {std::array{8, 200, 33}, {2, 70, 9}, {1, 33, 5}}) {
    SCOPED_TRACE(testing::Message()
                 << heads << " heads, prefix " << prefix << ", " << n << " nodes, seed 17");
    Random random(17);
    AttentionProblem a = mla(heads, DType::kBF16, DType::kF8E4M3, DType::kF32);
    a.n_words = 1;
    add_request(a, random, prefix, n, random_parents(random, n, 6));
    const auto rescale = [&](std::vector<float>& x, std::vector<float>* scales, int row,
                             float factor) {
      for (int d = 0; d < a.width(); ++d) x[static_cast<size_t>(row) * a.width() + d] *= factor;
      if (scales) (*scales)[row] *= factor;
    };
    for (int row = 0; row < n * heads; ++row)
      rescale(a.q, nullptr, row, row % 5 == 4 ? 0.0f : std::ldexp(1.0f, -20 * (row % 5)));
    for (int row = 0; row < a.n_pages * 64; ++row)
      rescale(a.pages, &a.page_scales, row, std::ldexp(1.0f, -2 * (row % 9)));
    for (int row = 0; row < n; ++row)
      rescale(a.tail, &a.tail_scales, row, std::ldexp(1.0f, -6 * (row % 4)));
    const AttentionResult want = truth(a);
    AttentionCall call(*cuda_backend(), a);
    on_each(a, [&](const std::string&, const Backend& backend) {
      expect_near(a, call.run(backend, &scratch_), want);
    });
  }
}

TEST_F(AttentionImplementations, ManyNodesAndManyHeads) {
  const int shapes[][3] = {{8, 1025, 100}, {128, 33, 70}, {1, 1025, 0}, {64, 65, 500}};
  for (const auto& [heads, n, prefix] : shapes) {
    SCOPED_TRACE(testing::Message() << heads << " heads, " << n << " nodes, prefix " << prefix);
    Random random(static_cast<uint64_t>(heads));
    AttentionProblem a = mla(heads, DType::kBF16, DType::kBF16, DType::kBF16);
    a.n_words = (n + 63) / 64;
    add_request(a, random, prefix, n, random_parents(random, n, 31));
    const AttentionResult want = truth(a);
    AttentionCall call(*cuda_backend(), a);
    on_each(a, [&](const std::string&, const Backend& backend) {
      expect_near(a, call.run(backend, &scratch_), want);
    });
  }
}

// One query of a tree over a long prefix in float64.
struct LongReference {
  std::vector<double> out;
  double lse;
};

LongReference long_reference(const AttentionProblem& a, const std::vector<uint16_t>& prefix,
                             int query) {
  const int width = a.width();
  const auto n_prefix = static_cast<int64_t>(prefix.size()) / width;
  const float* q = &a.q[static_cast<size_t>(query) * width];
  std::vector<const float*> tail;
  for (int i = 0; i < a.n_nodes[0]; ++i)
    if (a.sees(0, query / a.heads, i)) tail.push_back(&a.tail[static_cast<size_t>(i) * width]);
  const auto at = [&](int64_t i, int d) {
    return i < n_prefix ? double{bf16_to_f32(prefix[i * width + d])} : tail[i - n_prefix][d];
  };
  std::vector<double> scores(n_prefix + tail.size());
#pragma omp parallel for
  for (int64_t i = 0; i < static_cast<int64_t>(scores.size()); ++i) {
    double s = 0;
    for (int d = 0; d < width; ++d) s += double{q[d]} * at(i, d);
    scores[i] = s * a.scale;
  }
  const double peak = *std::max_element(scores.begin(), scores.end());
  double total = 0;
  for (double& s : scores) total += s = std::exp(s - peak);
  LongReference r{std::vector<double>(a.latent), peak + std::log(total)};
  for (size_t i = 0; i < scores.size(); ++i)
    for (int d = 0; d < a.latent; ++d)
      r.out[d] += scores[i] / total * at(static_cast<int64_t>(i), d);
  return r;
}

// 262,144 cached tokens in pages of a pool of more than 2^32 bytes and 2^31 elements.
TEST_F(AttentionImplementations, LongestPrefixInALargePool) {
  constexpr int kPrefix = 262144, kNodes = 9, kHeads = 8, kWidth = 576;
  constexpr int kBlocks = kPrefix / 64, kPoolPages = 62500;
  static_assert(int64_t{kPoolPages - kBlocks} * 64 * kWidth > int64_t{1} << 31);
  Random random(21);
  AttentionProblem a = mla(kHeads, DType::kBF16, DType::kBF16, DType::kF32);
  a.n_words = 1;
  a.scale = 0.3f;
  add_request(a, random, 0, kNodes, random_parents(random, kNodes, 5));
  std::vector<uint16_t> keys(static_cast<size_t>(kPrefix) * kWidth);
  for (uint16_t& key : keys)
    key = f32_to_bf16(static_cast<float>(static_cast<int32_t>(random.bits())) * 0x1p-31f);
  constexpr int kQueries[] = {0, 37, kNodes * kHeads - 1};
  std::vector<LongReference> want;
  for (const int query : kQueries) want.push_back(long_reference(a, keys, query));

  const Backend& memory = *cuda_backend();
  const size_t page_bytes = size_t{64} * kWidth * 2;
  Buffer<char> pool(memory, kPoolPages * page_bytes);
  std::vector<int32_t> table(kBlocks);
  for (int i = 0; i < kBlocks; ++i) {
    table[i] = kPoolPages - 1 - i;
    memory.copy_in(pool.data() + table[i] * page_bytes, &keys[size_t{64} * kWidth * i], page_bytes,
                   {});
  }
  auto q = typed_array(memory, a.q, a.q_dtype), tail = typed_array(memory, a.tail, a.kv_dtype);
  Array<int32_t> row_offset(memory, a.row_offset), n_nodes(memory, a.n_nodes);
  Array<int32_t> prefix_len(memory, {kPrefix}), block_table(memory, table);
  Array<uint64_t> ancestors(memory, a.ancestors);
  on_each(a, [&](const std::string&, const Backend& backend) {
    auto out = poisoned<float>(memory, size_t{kNodes} * kHeads * 512);
    auto lse = poisoned<float>(memory, size_t{kNodes} * kHeads);
    VerifyAttentionParams p = {.rows = {.n_requests = 1,
                                        .n_rows = kNodes,
                                        .row_offset = row_offset.data(),
                                        .n_nodes = n_nodes.data(),
                                        .prefix_len = prefix_len.data(),
                                        .block_table = block_table.data(),
                                        .max_blocks = kBlocks},
                               .q = q.data(),
                               .kv_pages = pool.data(),
                               .tail = tail.data(),
                               .ancestors = ancestors.data(),
                               .out = out.data(),
                               .lse = lse.data(),
                               .n_words = 1,
                               .n_heads = kHeads,
                               .n_pages = kPoolPages,
                               .scale = a.scale,
                               .q_dtype = DType::kBF16,
                               .kv_dtype = DType::kBF16};
    p.workspace = scratch_.workspace(backend, verify_attention_workspace(backend, p));
    verify_attention(backend, p);
    const std::vector<float> got = out.get(), got_lse = lse.get();
    for (size_t i = 0; i < want.size(); ++i) {
      const int query = kQueries[i];
      EXPECT_LE(relative_error(&got[query * 512], want[i].out.data(), 512),
                tolerance(DType::kBF16, 4000));
      EXPECT_NEAR(got_lse[query], want[i].lse, lse_tolerance(DType::kBF16));
    }
  });
}

}  // namespace
}  // namespace kdt::test
