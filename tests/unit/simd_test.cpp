#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "base/dtype.h"
#include "cpu/isa.h"

#define DECLARE_PROBES                                       \
  void probe_exp(const float*, float*);                      \
  float probe_sum(const float*);                             \
  float probe_max(const float*);                             \
  void probe_copy_first(const float*, float*, int);          \
  void probe_load_first(const float*, float*, int);          \
  void probe_arithmetic(const float*, const float*, float*); \
  void probe_bf16(const uint16_t*, float*);                  \
  void probe_f16(const uint16_t*, float*);

namespace kdt::cpu {
namespace avx2 {
DECLARE_PROBES
}
namespace avx512 {
DECLARE_PROBES
}

namespace {

struct Probes {
  const char* name;
  void (*exp)(const float*, float*);
  float (*sum)(const float*);
  float (*max)(const float*);
  void (*copy_first)(const float*, float*, int);
  void (*load_first)(const float*, float*, int);
  void (*arithmetic)(const float*, const float*, float*);
  void (*bf16)(const uint16_t*, float*);
  void (*f16)(const uint16_t*, float*);
};

#define PROBES(isa)                                                                   \
  Probes {                                                                            \
#isa, isa::probe_exp, isa::probe_sum, isa::probe_max, isa::probe_copy_first,      \
        isa::probe_load_first, isa::probe_arithmetic, isa::probe_bf16, isa::probe_f16 \
  }

std::vector<Probes> all_probes() {
  std::vector<Probes> probes = {PROBES(avx2)};
  if (use_avx512()) probes.push_back(PROBES(avx512));
  return probes;
}

std::vector<float> random_floats(int n, float scale, uint32_t seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> x(n);
  for (float& v : x) v = normal(rng);
  return x;
}

TEST(Simd, ExpIsWithinOneUlpAndTheSameOnEveryIsa) {
  double worst = 0;
  for (float start = -110.0f; start < 95.0f; start += 0.0173f) {
    float x[16], y[2][16] = {};
    for (int i = 0; i < 16; ++i) x[i] = start + 0.001f * static_cast<float>(i);
    const auto probes = all_probes();
    for (size_t isa = 0; isa < probes.size(); ++isa) probes[isa].exp(x, y[isa]);
    if (probes.size() == 2) {
      ASSERT_EQ(std::memcmp(y[0], y[1], sizeof(y[0])), 0) << x[0];
    }
    for (int i = 0; i < 16; ++i) {
      const double want = std::exp(static_cast<double>(x[i]));
      if (want > std::numeric_limits<float>::max()) {
        ASSERT_TRUE(std::isinf(y[0][i])) << x[i];
        continue;
      }
      const double ulp = std::ldexp(1.0, std::max(std::ilogb(want), -126) - 23);
      worst = std::max(worst, std::fabs(y[0][i] - want) / ulp);
    }
  }
  RecordProperty("worst_ulp", std::to_string(worst));
  EXPECT_LE(worst, 1.0);
}

TEST(Simd, ExpSpecialValues) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const float x[16] = {-kInf, kInf, nan, -nan, 0.0f, -0.0f, -104.5f, 1e30f, -1e30f};
  for (const Probes& p : all_probes()) {
    float y[16];
    p.exp(x, y);
    EXPECT_EQ(y[0], 0.0f) << p.name;
    EXPECT_EQ(y[1], kInf) << p.name;
    EXPECT_TRUE(std::isnan(y[2]) && std::isnan(y[3])) << p.name;
    EXPECT_EQ(y[4], 1.0f) << p.name;
    EXPECT_EQ(y[5], 1.0f) << p.name;
    EXPECT_EQ(y[6], 0.0f) << p.name;
    EXPECT_EQ(y[7], kInf) << p.name;
    EXPECT_EQ(y[8], 0.0f) << p.name;
  }
}

TEST(Simd, SumHasOneOrder) {
  const std::vector<float> x = random_floats(16, 1e3f, 7);
  float tree[16];
  std::copy(x.begin(), x.end(), tree);
  for (int width = 8; width; width /= 2) {
    for (int i = 0; i < width; ++i) tree[i] += tree[i + width];
  }
  for (const Probes& p : all_probes()) {
    EXPECT_EQ(p.sum(x.data()), tree[0]) << p.name;
    EXPECT_EQ(p.max(x.data()), *std::max_element(x.begin(), x.end())) << p.name;
  }
}

TEST(Simd, PartialLoadsAndStoresTouchOnlyTheirLanes) {
  const std::vector<float> x = random_floats(16, 1.0f, 11);
  for (const Probes& p : all_probes()) {
    for (int n = 1; n <= 16; ++n) {
      const std::vector<float> exact(x.begin(), x.begin() + n);  // nothing to read past n
      float copied[16], loaded[16];
      std::fill(copied, copied + 16, -7.0f);
      p.copy_first(exact.data(), copied, n);
      p.load_first(exact.data(), loaded, n);
      for (int i = 0; i < 16; ++i) {
        EXPECT_EQ(copied[i], i < n ? x[i] : -7.0f) << p.name << " " << n << " " << i;
        EXPECT_EQ(loaded[i], i < n ? x[i] : 0.0f) << p.name << " " << n << " " << i;
      }
    }
  }
}

TEST(Simd, ArithmeticAndWideningMatchScalarCode) {
  const std::vector<float> a = random_floats(16, 2.0f, 3), b = random_floats(16, 2.0f, 5);
  for (const Probes& p : all_probes()) {
    float y[16];
    p.arithmetic(a.data(), b.data(), y);
    for (int i = 0; i < 16; ++i) {
      const float spread = std::max(a[i], b[i]) - std::min(a[i], b[i]);
      EXPECT_EQ(y[i], spread / (a[i] * a[i] + std::fma(b[i], b[i], 1.0f))) << p.name;
    }
    for (uint32_t start = 0; start < 65536; start += 16) {
      uint16_t codes[16];
      for (uint32_t i = 0; i < 16; ++i) codes[i] = static_cast<uint16_t>(start + i);
      float wide[2][16];
      p.bf16(codes, wide[0]);
      p.f16(codes, wide[1]);
      for (int i = 0; i < 16; ++i) {
        const float want[2] = {bf16_to_f32(codes[i]), f16_to_f32(codes[i])};
        for (int t = 0; t < 2; ++t) {
          if (std::isnan(want[t])) {
            ASSERT_TRUE(std::isnan(wide[t][i])) << p.name << " " << codes[i];
          } else {
            ASSERT_EQ(std::bit_cast<uint32_t>(wide[t][i]), std::bit_cast<uint32_t>(want[t]))
                << p.name << " " << codes[i];
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace kdt::cpu
