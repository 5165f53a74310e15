// The implementations of verify_attention behind the CUDA backend, at the shapes of MLA, against
// the CPU backend and against float64. Without a GPU they report themselves skipped.
#include <gtest/gtest.h>

#include <cstdio>
#include <map>

#include "tests/ops/attention_golden.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

constexpr const char* kImplementations[] = {"cuda", "simt", "mma", "mma_small", "sm90"};

// "cuda" is the choice by shape.
const Backend* implementation(const std::string& name) {
  return cuda_backend_with_attention(name == "cuda" ? "" : name);
}

bool takes(const std::string& name, DType kv_dtype, bool batch_invariant = false) {
  return name != "sm90" || (kv_dtype != DType::kF8E4M3 && !batch_invariant);
}

class AttentionImplementation : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    backend_ = implementation(GetParam());
    if (!backend_) GTEST_SKIP() << "no such implementation in this build, or no GPU for it";
  }
  const Backend& backend() const { return *backend_; }
  bool takes(DType kv_dtype, bool batch_invariant = false) const {
    return kdt::test::takes(GetParam(), kv_dtype, batch_invariant);
  }

 private:
  const Backend* backend_ = nullptr;
};
INSTANTIATE_TEST_SUITE_P(Of, AttentionImplementation, testing::ValuesIn(kImplementations),
                         [](const auto& info) { return std::string(info.param); });

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

void expect_near(const AttentionProblem& a, const AttentionResult& got,
                 const AttentionResult& want) {
  const Errors e = errors(a, got, want);
  EXPECT_LE(e.out, tolerance(narrowest(a), 4000));
  EXPECT_LE(e.lse, lse_tolerance(narrowest(a)));
}

// The CPU backend's result in fp32.
AttentionResult truth(AttentionProblem a) {
  a.out_dtype = DType::kF32;
  return run(cpu_backend(), a);
}

AttentionProblem random_case(uint64_t seed) {
  Random random(seed);
  const int heads[] = {1, 2, 3, 4, 8, 8, 8, 16, 16, 32, 64, 128};
  const DType types[][2] = {{DType::kBF16, DType::kBF16},
                            {DType::kBF16, DType::kBF16},
                            {DType::kF16, DType::kF16},
                            {DType::kBF16, DType::kF8E4M3}};
  const auto& type = types[random.integer(0, 3)];
  AttentionProblem a = mla(heads[random.integer(0, 11)], type[0], type[1],
                           random.integer(0, 1) ? DType::kF32 : type[0]);
  a.batch_invariant = random.integer(0, 3) == 0;
  const bool chain = random.integer(0, 4) == 0;
  a.n_words = chain ? 0 : static_cast<int>(random.integer(2, 3));
  const int n_requests = static_cast<int>(random.integer(1, 3));
  const int largest = a.heads >= 32 ? 6 : a.heads >= 8 ? 24 : 90;
  const int edges[] = {0, 1, 31, 32, 33, 63, 64, 65, 127, 128, 200, 600};
  for (int b = 0; b < n_requests; ++b) {
    const int n = static_cast<int>(random.integer(0, largest));
    add_request(a, random, edges[random.integer(0, 11)], n,
                chain || n == 0 ? std::vector<int>{} : random_parents(random, n, 12),
                random.integer(0, 3) ? 1.0f : 3.0f);
  }
  return a;
}

// Every implementation of this build and machine on the same cases, each with a workspace that
// holds what earlier cases left.
void run_random_cases(uint64_t first, uint64_t count) {
  if (!cuda_backend()) GTEST_SKIP() << "no CUDA in this build, or no GPU in this machine";
  std::map<std::string, Errors> worst;
  std::map<std::string, SharedScratch> scratch;
  for (uint64_t seed = first; seed < first + count; ++seed) {
    const AttentionProblem a = random_case(seed);
    const AttentionResult want = truth(a);
    for (const char* name : kImplementations) {
      SCOPED_TRACE(testing::Message() << name << ", seed " << seed);
      const Backend* backend = implementation(name);
      if (!backend || !takes(name, a.kv_dtype, a.batch_invariant)) continue;
      const AttentionResult got = run(*backend, a, &scratch[name]);
      expect_near(a, got, want);
      if (testing::Test::HasFailure()) return;
      const Errors e = errors(a, got, want);
      worst[name].out = std::max(worst[name].out, e.out);
      worst[name].lse = std::max(worst[name].lse, e.lse);
    }
  }
  for (const auto& [name, e] : worst)
    std::printf("%s, seeds %llu..%llu: largest relative error %.2e, of lse %.2e\n", name.c_str(),
                static_cast<unsigned long long>(first),
                static_cast<unsigned long long>(first + count - 1), e.out, e.lse);
}

TEST(AttentionImplementations, RandomCasesMatchTheCpu) {
  run_random_cases(0, 2000);
}

// A few cases of every kind, for the sanitizers.
TEST(AttentionImplementations, FewCases) {
  run_random_cases(5000, 12);
}

TEST_P(AttentionImplementation, GoldenBundlesInTheirOwnType) {
  for (const Golden& g : golden_bundles("verify_attention")) {
    SCOPED_TRACE(g.label());
    AttentionProblem a = golden_problem(g, DType::kBF16);
    if (a.latent != 512 || a.rope != 64) continue;
    const AttentionResult want = {g.get<float>("out"), g.get<float>("lse")};
    for (const bool invariant : {false, true}) {
      if (!takes(a.kv_dtype, invariant)) continue;
      a.batch_invariant = invariant;
      expect_near(a, run(backend(), a), want);
    }
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

TEST_P(AttentionImplementation, RepeatsGiveTheSameBits) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    if (!takes(kv)) continue;
    const AttentionProblem a = mixed_batch(7, kv, 8);
    const AttentionResult first = run(backend(), a);
    expect_near(a, first, truth(a));
    SharedScratch scratch;
    for (int i = 0; i < 100; ++i)
      ASSERT_TRUE(run(backend(), a, &scratch) == first) << "repeat " << i;
  }
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

TEST_P(AttentionImplementation, BatchInvariantBits) {
  for (const DType kv : {DType::kBF16, DType::kF8E4M3}) {
    if (!takes(kv, true)) continue;
    AttentionProblem a = mixed_batch(8, kv, 8);
    a.batch_invariant = true;
    const AttentionResult batch = run(backend(), a);
    expect_near(a, batch, truth(a));
    for (size_t b = 0; b < a.row_offset.size(); ++b) {
      const AttentionResult alone = run(backend(), only(a, b));
      const size_t first = static_cast<size_t>(a.row_offset[b]) * a.heads;
      for (size_t i = 0; i < alone.lse.size(); ++i)
        ASSERT_EQ(alone.lse[i], batch.lse[first + i]) << "request " << b;
      for (size_t i = 0; i < alone.out.size(); ++i)
        ASSERT_EQ(alone.out[i], batch.out[first * a.latent + i]) << "request " << b;
    }
  }
}

TEST_P(AttentionImplementation, NanStaysWithTheRowsThatSeeIt) {
  for (const DType kv : {DType::kBF16, DType::kF16}) {
    Random random(13);
    AttentionProblem a = mla(4, kv, kv, DType::kF32);
    a.n_words = 1;
    add_request(a, random, 40, 7, {-1, 0, 0, 1, 2, 1, 5});
    add_request(a, random, 64, 2, {-1, 0});
    const AttentionResult clean = run(backend(), a);
    for (const float bad_value : {NAN, kInf}) {
      AttentionProblem bad = a;
      std::fill_n(&bad.tail[1 * a.width()], a.width(), bad_value);             // node 1's key
      std::fill_n(&bad.q[4 * a.heads * a.width()], a.heads * a.width(), NAN);  // node 4's query
      const AttentionResult got = run(backend(), bad);
      const int per_row = a.heads * a.latent;
      for (int row = 0; row < 9; ++row) {
        const bool hit = row == 4 || (row < 7 && a.sees(0, row, 1));
        for (int i = row * per_row; i < (row + 1) * per_row; ++i)
          ASSERT_TRUE(hit ? std::isnan(got.out[i]) : got.out[i] == clean.out[i]) << "row " << row;
      }
    }
  }
}

TEST_P(AttentionImplementation, ManyNodesAndManyHeads) {
  const int shapes[][3] = {{8, 1025, 100}, {128, 33, 70}, {1, 1025, 0}, {64, 65, 500}};
  for (const auto& [heads, n, prefix] : shapes) {
    SCOPED_TRACE(testing::Message() << heads << " heads, " << n << " nodes, prefix " << prefix);
    Random random(static_cast<uint64_t>(heads));
    AttentionProblem a = mla(heads, DType::kBF16, DType::kBF16, DType::kBF16);
    a.n_words = (n + 63) / 64;
    add_request(a, random, prefix, n, random_parents(random, n, 31));
    expect_near(a, run(backend(), a), truth(a));
  }
}

// 262,144 cached tokens in pages of a pool of more than 2^32 bytes and 2^31 elements.
TEST_P(AttentionImplementation, LongestPrefixInALargePool) {
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

  const Backend& gpu = backend();
  const size_t page_bytes = size_t{64} * kWidth * 2;
  Buffer<char> pool(gpu, kPoolPages * page_bytes);
  std::vector<int32_t> table(kBlocks);
  for (int i = 0; i < kBlocks; ++i) {
    table[i] = kPoolPages - 1 - i;
    gpu.copy_in(pool.data() + table[i] * page_bytes, &keys[size_t{64} * kWidth * i], page_bytes,
                {});
  }
  auto q = typed_array(gpu, a.q, a.q_dtype), tail = typed_array(gpu, a.tail, a.kv_dtype);
  Array<int32_t> row_offset(gpu, a.row_offset), n_nodes(gpu, a.n_nodes), prefix_len(gpu, {kPrefix});
  Array<int32_t> block_table(gpu, table);
  Array<uint64_t> ancestors(gpu, a.ancestors);
  auto out = poisoned<float>(gpu, size_t{kNodes} * kHeads * 512);
  auto lse = poisoned<float>(gpu, size_t{kNodes} * kHeads);
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
  Scratch scratch(gpu, verify_attention_workspace(gpu, p));
  p.workspace = scratch.workspace();
  verify_attention(gpu, p);
  const std::vector<float> got = out.get(), got_lse = lse.get();

  for (const int query : {0, 37, kNodes * kHeads - 1}) {
    std::vector<double> scores, want(512);
    std::vector<const float*> tail_keys;
    for (int64_t i = 0; i < kPrefix; ++i) {
      double s = 0;
      for (int d = 0; d < kWidth; ++d)
        s += double{a.q[query * kWidth + d]} * bf16_to_f32(keys[i * kWidth + d]);
      scores.push_back(s * a.scale);
    }
    for (int i = 0; i < kNodes; ++i) {
      if (!a.sees(0, query / kHeads, i)) continue;
      tail_keys.push_back(&a.tail[i * kWidth]);
      double s = 0;
      for (int d = 0; d < kWidth; ++d) s += double{a.q[query * kWidth + d]} * tail_keys.back()[d];
      scores.push_back(s * a.scale);
    }
    const double peak = *std::max_element(scores.begin(), scores.end());
    double total = 0;
    for (double& s : scores) total += s = std::exp(s - peak);
    for (size_t i = 0; i < scores.size(); ++i)
      for (int d = 0; d < 512; ++d)
        want[d] += scores[i] / total *
                   (i < kPrefix ? bf16_to_f32(keys[i * kWidth + d]) : tail_keys[i - kPrefix][d]);
    EXPECT_LE(relative_error(&got[query * 512], want.data(), 512), tolerance(DType::kBF16, 4000));
    EXPECT_NEAR(got_lse[query], peak + std::log(total), lse_tolerance(DType::kBF16));
  }
}

}  // namespace
}  // namespace kdt::test
