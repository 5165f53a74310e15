// The implementations of verify_attention behind the CUDA backend, against the CPU backend and
// against float64.
#include "tests/ops/attention_implementations.h"

#include <array>
#include <cstdio>
#include <map>

#include "tests/ops/attention_golden.h"
#include "tests/ops/golden.h"

namespace kdt::test {
namespace {

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
    verify_attention_plan(backend, p);
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
