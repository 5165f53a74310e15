#include "ops/verify_attention.h"

#include <gtest/gtest.h>
#ifdef _OPENMP
#include <omp.h>
#endif

#include "base/error.h"
#include "cpu/attention_block.h"
#include "cpu/isa.h"
#include "tests/errors.h"
#include "tests/ops/attention_golden.h"
#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"
#include "tests/ops/on_backends.h"
#include "tests/ops/tolerance.h"

namespace kdt::cpu {
namespace avx2 {
void attend_block(const AttentionKeys&, AttentionQuery*, int);
}
namespace avx512 {
void attend_block(const AttentionKeys&, AttentionQuery*, int);
}
}  // namespace kdt::cpu

namespace kdt::test {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr DType kTypes[] = {DType::kF32, DType::kBF16, DType::kF16};
constexpr DType kKeyTypes[] = {DType::kF32, DType::kBF16, DType::kF16, DType::kF8E4M3};

class VerifyAttention : public OnBackends {};
INSTANTIATE_ON_BACKENDS(VerifyAttention);

// All used rows within the tolerance, every other row untouched.
void expect_close(const AttentionProblem& a, const AttentionResult& got) {
  const AttentionReference want = reference(a);
  const float poison = poisoned<float>(cpu_backend(), 1).get()[0];
  std::vector<float> out;
  std::vector<double> ref;
  for (int query = 0; query < a.n_rows * a.heads; ++query) {
    if (!a.used(query / a.heads)) {
      EXPECT_EQ(got.lse[query], poison);
      continue;
    }
    const auto first = static_cast<ptrdiff_t>(query) * a.latent;
    out.insert(out.end(), got.out.begin() + first, got.out.begin() + first + a.latent);
    ref.insert(ref.end(), want.out.begin() + first, want.out.begin() + first + a.latent);
    if (std::isinf(want.lse[query]))
      EXPECT_EQ(got.lse[query], -kInf) << "query " << query;
    else
      EXPECT_NEAR(got.lse[query], want.lse[query], lse_tolerance(DType::kF32)) << "query " << query;
  }
  // Inputs are exact in their own types, so only a narrow output costs accuracy.
  EXPECT_LE(relative_error(out.data(), ref.data(), out.size()), tolerance(a.out_dtype, 4000));
}

AttentionProblem random_problem(Random& random, bool chain) {
  AttentionProblem a;
  const int heads[] = {1, 2, 3, 4, 5, 8, 17};
  a.heads = heads[random.integer(0, 6)];
  const bool odd = random.integer(0, 3) == 0;
  a.latent = static_cast<int>(odd ? random.integer(1, 40) : 16 * random.integer(1, 5));
  a.rope = static_cast<int>(odd ? random.integer(0, 20) : 16 * random.integer(0, 2));
  a.scale = 1.0f / std::sqrt(static_cast<float>(a.width()));
  a.q_dtype = kTypes[random.integer(0, 2)];
  a.kv_dtype = kKeyTypes[random.integer(0, 3)];
  a.out_dtype = kTypes[random.integer(0, 2)];
  const int n_requests = static_cast<int>(random.integer(1, 4));
  a.n_words = static_cast<int>(random.integer(2, 3));
  const int edges[] = {0, 1, 63, 64, 65, 127, 128, 200};
  for (int b = 0; b < n_requests; ++b) {
    const int prefix = edges[random.integer(0, 7)];
    const int n = static_cast<int>(random.integer(0, chain ? 50 : 20));
    const float magnitude = random.integer(0, 3) ? 1.0f : 6.0f;
    add_request(a, random, prefix, n,
                chain || n == 0 ? std::vector<int>{} : random_parents(random, n, 9), magnitude);
  }
  if (chain) a.n_words = 0;
  return a;
}

TEST_P(VerifyAttention, RandomTreesMatchDouble) {
  // The reference is in float64 on one thread; a GPU has tests of its own for many cases.
  for (uint64_t seed = 0; seed < (is_cpu() ? 150 : 30); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const AttentionProblem a = random_problem(random, false);
    expect_close(a, run(backend(), a));
  }
}

TEST_P(VerifyAttention, RandomChainsMatchDouble) {
  for (uint64_t seed = 1000; seed < (is_cpu() ? 1060 : 1012); ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    const AttentionProblem a = random_problem(random, true);
    expect_close(a, run(backend(), a));
  }
}

AttentionProblem mla_problem(int heads) {
  AttentionProblem a;
  a.heads = heads;
  a.latent = 512;
  a.rope = 64;
  a.scale = 0.1446796f;
  a.n_words = 1;
  return a;
}

TEST_P(VerifyAttention, LongPrefixAndLargeScoresMatchDouble) {
  for (const float magnitude : {0.05f, 1.0f, 4.0f}) {
    SCOPED_TRACE(testing::Message() << "seed 5, magnitude " << magnitude);
    Random random(5);
    AttentionProblem a = mla_problem(4);
    add_request(a, random, 1500, 3, {-1, 0, 0}, magnitude);
    expect_close(a, run(backend(), a));
  }
}

// The inputs are bf16, so running them as bf16 or as fp32 must give the same bits on the CPU.
TEST_P(VerifyAttention, GoldenBundles) {
  for (const Golden& g : golden_bundles("verify_attention")) {
    SCOPED_TRACE(g.label());
    const AttentionProblem a = golden_problem(g, DType::kF32);
    const AttentionResult got = run(backend(), a);
    if (is_cpu()) {
      EXPECT_TRUE(run(backend(), golden_problem(g, DType::kBF16)) == got);
    }
    const std::vector<float> out = g.get<float>("out"), lse = g.get<float>("lse");
    const double keys = a.prefix_len[0] + a.n_nodes[0];
    EXPECT_LE(relative_error(got.out.data(), out.data(), out.size()),
              tolerance(DType::kF32, keys + a.width()));
    for (size_t i = 0; i < lse.size(); ++i) {
      if (std::isinf(lse[i]))
        EXPECT_EQ(got.lse[i], lse[i]) << i;
      else
        EXPECT_NEAR(got.lse[i], lse[i], lse_tolerance(DType::kF32)) << i;
    }
  }
}

// Keys of the tiny model's layers in FP8, each row with the scale that makes its largest element
// the largest code: what narrowing them costs, and that it costs no more than narrowing.
TEST_P(VerifyAttention, Fp8KeysOfARealModel) {
  int n_layers = 0;
  for (const Golden& g : golden_bundles("verify_attention")) {
    if (g.label().find("real_layer") == std::string::npos) continue;
    AttentionProblem a = golden_problem(g, DType::kBF16);
    const auto row_scales = [&](const std::vector<float>& keys) {
      std::vector<float> scales;
      for (size_t row = 0; row < keys.size(); row += a.width()) {
        float most = 0.0f;
        for (int d = 0; d < a.width(); ++d) most = std::max(most, std::abs(keys[row + d]));
        scales.push_back(most > 0.0f ? most / 448.0f : 1.0f);
      }
      return scales;
    };
    a.kv_dtype = DType::kF8E4M3;
    a.out_dtype = DType::kF32;
    a.page_scales = row_scales(a.pages);
    a.tail_scales = row_scales(a.tail);
    const auto narrow = [&](std::vector<float>& keys, const std::vector<float>& scales) {
      for (size_t i = 0; i < keys.size(); ++i) {
        const float scale = scales[i / a.width()];
        keys[i] = f8e4m3_to_f32(f32_to_f8e4m3(keys[i] / scale)) * scale;
      }
    };
    narrow(a.pages, a.page_scales);
    narrow(a.tail, a.tail_scales);
    const AttentionReference narrowed = reference(a);
    const AttentionResult got = run(backend(), a);
    const std::vector<float> out = g.get<float>("out"), lse = g.get<float>("lse");
    const double error = relative_error(got.out.data(), out.data(), out.size());
    double lse_error = 0.0;
    for (size_t i = 0; i < lse.size(); ++i) {
      lse_error = std::max(lse_error, std::abs(double{got.lse[i]} - lse[i]));
      EXPECT_NEAR(got.lse[i], narrowed.lse[i], lse_tolerance(DType::kBF16));
    }
    std::printf("%s: FP8 keys change the output by %.2e of its norm, a log-sum-exp by %.2e\n",
                g.label().c_str(), error, lse_error);
    EXPECT_LE(relative_error(got.out.data(), narrowed.out.data(), out.size()),
              tolerance(DType::kBF16, 4000));
    EXPECT_GT(error, 0.02) << "the keys were not narrowed";
    EXPECT_LT(error, 0.1);
    ++n_layers;
  }
  EXPECT_EQ(n_layers, 2);
}

// The bits of one row's heads.
std::vector<float> row_bits(const AttentionProblem& a, const AttentionResult& r, int row) {
  const size_t out = static_cast<size_t>(a.heads) * a.latent;
  std::vector<float> bits(r.out.begin() + row * out, r.out.begin() + (row + 1) * out);
  bits.insert(bits.end(), r.lse.begin() + row * a.heads, r.lse.begin() + (row + 1) * a.heads);
  return bits;
}

// The path of `node` of request b as a problem of its own: the first `n_cached` keys in the prefix,
// the rest as a causal chain whose last row is the node's query.
AttentionProblem alone(const AttentionProblem& a, size_t b, int node, int n_cached) {
  const int width = a.width(), row = a.row_offset[b];
  std::vector<float> keys;
  for (int i = 0; i < a.prefix_len[b]; ++i) {
    const size_t page = a.block_table[b * a.max_blocks + i / 64];
    const float* key = &a.pages[(page * 64 + i % 64) * width];
    keys.insert(keys.end(), key, key + width);
  }
  for (int i = 0; i < a.n_nodes[b]; ++i) {
    const float* key = &a.tail[static_cast<size_t>(row + i) * width];
    if (a.sees(row, node, i)) keys.insert(keys.end(), key, key + width);
  }
  AttentionProblem path = a;
  const int n_keys = static_cast<int>(keys.size()) / width, n = n_keys - n_cached;
  path.ancestors.clear();
  path.n_words = 0;
  path.n_rows = n;
  path.row_offset = {0};
  path.n_nodes = {n};
  path.prefix_len = {n_cached};
  path.max_blocks = path.n_pages = std::max(1, (n_cached + 63) / 64);
  path.block_table.clear();
  for (int i = 0; i < path.max_blocks; ++i) path.block_table.push_back(i);
  path.pages.assign(static_cast<size_t>(path.n_pages) * 64 * width, NAN);
  std::copy_n(keys.begin(), static_cast<size_t>(n_cached) * width, path.pages.begin());
  path.tail.assign(keys.begin() + static_cast<ptrdiff_t>(n_cached) * width, keys.end());
  path.q.assign(static_cast<size_t>(n) * a.heads * width, 1.0f);
  std::copy_n(&a.q[static_cast<size_t>(row + node) * a.heads * width], a.heads * width,
              path.q.end() - a.heads * width);
  return path;
}

TEST(VerifyAttentionOnCpu, BitsDependOnThePathOnly) {
  for (uint64_t seed = 0; seed < 6; ++seed) {
    SCOPED_TRACE(testing::Message() << "seed " << seed);
    Random random(seed);
    AttentionProblem a = mla_problem(seed % 2 ? 4 : 3);
    a.latent = 48;
    a.rope = seed % 3 ? 16 : 9;
    a.kv_dtype = kTypes[seed % 3];
    const int prefixes[] = {0, 1, 57, 63, 64, 65, 120};
    for (int b = 0; b < 3; ++b) {
      const int n = static_cast<int>(random.integer(1, 33));
      add_request(a, random, prefixes[(seed + b) % 7], n, random_parents(random, n, 12));
    }
    const AttentionResult batch = run(cpu_backend(), a);
    for (size_t b = 0; b < 3; ++b) {
      for (int node = 0; node < a.n_nodes[b]; ++node) {
        const int row = a.row_offset[b] + node;
        for (int moved : {0, 2, 64}) {  // tail keys that go to the prefix; the last one stays
          int depth = 0;
          for (int i = 0; i < node; ++i) depth += a.sees(a.row_offset[b], node, i);
          const AttentionProblem path = alone(a, b, node, a.prefix_len[b] + std::min(moved, depth));
          const AttentionResult single = run(cpu_backend(), path);
          ASSERT_EQ(row_bits(path, single, path.n_rows - 1), row_bits(a, batch, row))
              << "request " << b << " node " << node << " moved " << moved;
        }
      }
    }
  }
}

TEST(VerifyAttentionOnCpu, ChunksOfAChainGiveTheSameBits) {
  Random random(77);
  AttentionProblem whole = mla_problem(4);
  whole.latent = 64;
  whole.n_words = 0;
  add_request(whole, random, 30, 150, {});
  const AttentionResult want = run(cpu_backend(), whole);
  for (int cut : {1, 33, 34, 35, 98, 149}) {
    // The last rows alone, their predecessors' keys in the cache.
    for (int node = cut; node < 150; node += 29) {
      const AttentionProblem rest = alone(whole, 0, node, 30 + cut);
      const AttentionResult got = run(cpu_backend(), rest);
      ASSERT_EQ(row_bits(rest, got, rest.n_rows - 1), row_bits(whole, want, node)) << cut;
    }
  }
}

// All golden trees of one head count in one call: every row as in its own bundle.
TEST(VerifyAttentionOnCpu, GoldenRequestsMixed) {
  for (const int heads : {4, 8, 16}) {
    AttentionProblem all;
    std::vector<float> want;
    for (const Golden& g : golden_bundles("verify_attention")) {
      const AttentionProblem one = golden_problem(g, DType::kF32);
      if (!all.q.empty() && one.scale != all.scale) continue;
      if (one.heads != heads || one.n_words > 1 || one.ancestors.empty() || one.n_pages > 40)
        continue;
      const AttentionResult alone = run(cpu_backend(), one);
      append(all, one);
      for (int row = 0; row < one.n_rows; ++row) {
        const std::vector<float> bits = row_bits(one, alone, row);
        want.insert(want.end(), bits.begin(), bits.end());
      }
    }
    ASSERT_GT(all.row_offset.size(), 1u);
    const AttentionResult mixed = run(cpu_backend(), all);
    std::vector<float> got;
    for (int row = 0; row < all.n_rows; ++row) {
      const std::vector<float> bits = row_bits(all, mixed, row);
      got.insert(got.end(), bits.begin(), bits.end());
    }
    EXPECT_EQ(got, want) << heads << " heads";
  }
}

TEST(VerifyAttentionOnCpu, ThreadsDoNotChangeBits) {
#ifdef _OPENMP
  Random random(31);
  AttentionProblem a = mla_problem(4);
  add_request(a, random, 70, 9, random_parents(random, 9, 5));
  add_request(a, random, 3, 1, {-1});
  const int before = omp_get_max_threads();
  omp_set_num_threads(1);
  const AttentionResult want = run(cpu_backend(), a);
  for (int threads : {2, 3, 7}) {
    omp_set_num_threads(threads);
    EXPECT_TRUE(run(cpu_backend(), a) == want) << threads;
  }
  omp_set_num_threads(before);
#endif
}

TEST(VerifyAttentionOnCpu, InstructionSetsGiveTheSameBits) {
  if (!cpu::use_avx512()) GTEST_SKIP() << "no AVX-512 here";
  Random random(91);
  for (int round = 0; round < 60; ++round) {
    const int dim = static_cast<int>(16 * random.integer(1, 12));
    const int value_dim = static_cast<int>(16 * random.integer(1, dim / 16));
    const int n = static_cast<int>(random.integer(1, 9));
    const std::vector<float> k = random.normals(64 * dim), q = random.normals(n * dim, 2.0f);
    cpu::AttentionKeys keys{
        .key = {}, .value = {}, .dim = dim, .value_dim = value_dim, .scale = 0.1f};
    for (int i = 0; i < 64; ++i)
      keys.key[i] = keys.value[i] = random.integer(0, 3) ? &k[i * dim] : nullptr;
    std::vector<float> acc[2];
    std::vector<cpu::AttentionQuery> queries[2];
    for (int isa = 0; isa < 2; ++isa) {
      acc[isa].assign(n * value_dim, 0.0f);
      for (int i = 0; i < n; ++i)
        queries[isa].push_back({&q[i * dim], &acc[isa][i * value_dim], -kInf, 0.0f});
      for (int block = 0; block < 3; ++block)
        (isa ? cpu::avx512::attend_block : cpu::avx2::attend_block)(keys, queries[isa].data(), n);
    }
    ASSERT_EQ(acc[0], acc[1]) << "round " << round;
    for (int i = 0; i < n; ++i) {
      ASSERT_EQ(queries[0][i].max, queries[1][i].max);
      ASSERT_EQ(queries[0][i].sum, queries[1][i].sum);
    }
  }
}

TEST_P(VerifyAttention, NanStaysWithTheRowsThatSeeIt) {
  Random random(13);
  AttentionProblem a = mla_problem(4);
  a.latent = 32;
  const std::vector<int> parents = {-1, 0, 0, 1, 2, 1, 5};
  add_request(a, random, 40, 7, parents);
  add_request(a, random, 64, 2, {-1, 0});
  const AttentionResult clean = run(backend(), a);
  for (const float bad_value : {NAN, kInf}) {
    AttentionProblem bad = a;
    std::fill_n(&bad.tail[1 * a.width()], a.width(), bad_value);             // node 1's key
    std::fill_n(&bad.q[4 * a.heads * a.width()], a.heads * a.width(), NAN);  // node 4's query
    const AttentionResult got = run(backend(), bad);
    for (int row = 0; row < 9; ++row) {
      const bool hit = row == 4 || (row < 7 && a.sees(0, row, 1));
      if (!hit) {
        EXPECT_EQ(row_bits(a, got, row), row_bits(a, clean, row)) << row;
        continue;
      }
      for (float x : row_bits(a, got, row)) EXPECT_TRUE(std::isnan(x)) << row;
    }
  }
}

TEST_P(VerifyAttention, ARowThatSeesNothingIsZero) {
  Random random(17);
  AttentionProblem a = mla_problem(4);
  a.latent = 32;
  add_request(a, random, 0, 3, {-1, 0, 1});
  add_request(a, random, 5, 2, {-1, 0});
  a.ancestors[1] = 0;
  a.ancestors[4] = 0;
  const AttentionResult got = run(backend(), a);
  expect_close(a, got);
  for (int i = 0; i < 4 * 32; ++i) EXPECT_EQ(got.out[4 * 32 + i], 0.0f);
  EXPECT_EQ(got.lse[4], -kInf);
  EXPECT_TRUE(std::isfinite(got.lse[4 * 4]));  // the prefix alone
}

TEST_P(VerifyAttention, EmptyBatchesAreFine) {
  AttentionProblem a = mla_problem(2);
  EXPECT_TRUE(run(backend(), a).out.empty());
  Random random(3);
  add_request(a, random, 70, 0, {});
  EXPECT_TRUE(run(backend(), a).out.empty());
}

std::string refusal(const AttentionProblem& a) {
  return test::message_of([&] { run(cpu_backend(), a); }, ErrorCode::kInvalidArgument);
}

TEST(VerifyAttentionOnCpu, RefusesWhatWouldReadOutside) {
  Random random(19);
  AttentionProblem good = mla_problem(2);
  good.latent = 32;
  add_request(good, random, 70, 3, {-1, 0, 0});
  EXPECT_EQ(refusal(good), "no error");
  const auto with = [&](auto change) {
    AttentionProblem bad = good;
    change(bad);
    return refusal(bad);
  };
  EXPECT_EQ(with([](auto& a) { a.block_table[1] = 2; }),
            "verify_attention: block_table is 2, expected 0..1 at block 1 of request 0");
  EXPECT_EQ(with([](auto& a) { a.block_table[0] = -1; }),
            "verify_attention: block_table is -1, expected 0..1 at block 0 of request 0");
  EXPECT_EQ(with([](auto& a) { a.prefix_len[0] = 129; }),
            "verify_attention: prefix_len is 129, expected 0..128 (max_blocks pages) in request 0");
  EXPECT_EQ(with([](auto& a) { a.prefix_len[0] = -1; }),
            "verify_attention: prefix_len is -1, expected 0..128 (max_blocks pages) in request 0");
  EXPECT_EQ(with([](auto& a) { a.n_nodes[0] = 4; }),
            "verify_attention: n_nodes is 4, expected 0..3 (n_rows) in request 0");
  EXPECT_EQ(with([](auto& a) { a.row_offset[0] = 1; }),
            "verify_attention: row_offset is 1, expected 0..0 for the 3 nodes of request 0");
  EXPECT_EQ(with([](auto& a) { a.ancestors[2] = 9; }),
            "verify_attention: ancestors is 9, expected no bit past node 2 in word 0 of node 2");
  EXPECT_EQ(with([](auto& a) { a.n_words = 0; }),
            "verify_attention: n_words is 0, expected 1 or more with ancestors");
  EXPECT_EQ(with([](auto& a) { a.heads = 0; }),
            "verify_attention: n_heads is 0, expected 1 or more");
  EXPECT_EQ(with([](auto& a) { a.kv_dtype = DType::kF8E4M3; }),
            "verify_attention: tail_scales is null, expected an array");
  EXPECT_EQ(with([](auto& a) { a.kv_dtype = DType::kF64; }),
            "verify_attention: kv_dtype is f64, expected f32, bf16, f16 or f8e4m3");
}

}  // namespace
}  // namespace kdt::test
