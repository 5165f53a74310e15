// The implementations of verify_attention behind the CUDA backend, at the shapes of MLA: what the
// tests of them share. Without a GPU they report themselves skipped.
#pragma once

#include <gtest/gtest.h>

#include <limits>
#include <string>
#include <vector>

#include "tests/ops/attention_problem.h"
#include "tests/ops/tolerance.h"

namespace kdt::test {

inline constexpr float kInf = std::numeric_limits<float>::infinity();

// "cuda" is the choice by shape.
inline constexpr const char* kImplementations[] = {"cuda", "simt", "mma", "mma_small", "sm90"};

inline const Backend* implementation(const std::string& name) {
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

inline AttentionProblem mla(int heads, DType q_dtype, DType kv_dtype, DType out_dtype) {
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
inline DType narrowest(const AttentionProblem& a) {
  for (const DType t : {a.q_dtype, a.kv_dtype, a.out_dtype})
    if (t == DType::kBF16 || t == DType::kF8E4M3) return DType::kBF16;
  return a.q_dtype == DType::kF32 && a.out_dtype == DType::kF32 ? DType::kF32 : DType::kF16;
}

struct Errors {
  double out = 0.0, lse = 0.0;
};

// How far the used rows are from `want`; infinite where other rows were written or infinities
// differ.
inline Errors errors(const AttentionProblem& a, const AttentionResult& got,
                     const AttentionResult& want) {
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

inline Errors expect_near(const AttentionProblem& a, const AttentionResult& got,
                          const AttentionResult& want) {
  const Errors e = errors(a, got, want);
  EXPECT_LE(e.out, tolerance(narrowest(a), 4000));
  EXPECT_LE(e.lse, lse_tolerance(narrowest(a)));
  return e;
}

// The CPU backend's result in fp32.
inline AttentionResult truth(AttentionProblem a) {
  a.out_dtype = DType::kF32;
  return run(cpu_backend(), a);
}

// More items than multiprocessors: two in five and more are left by one gang of thread blocks to
// the next (AttentionSchedule.GangsLeaveItemsToTheNextOne). Lengths are `step` apart.
inline AttentionProblem items_of_two_gangs(DType type, DType out_dtype, int step) {
  Random random(9 + step);
  AttentionProblem a = mla(16, type, type, out_dtype);
  a.n_words = 1;
  for (int b = 0; b < 28; ++b)
    add_request(a, random, 200 + step * b, 17, random_parents(random, 17, 12), 3.0f);
  return a;
}

}  // namespace kdt::test
