// Seeded inputs for op tests: the same numbers on every machine.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <vector>

namespace kdt::test {

// What outputs hold before a run, so that an element nobody writes is seen.
inline constexpr float kPoison = std::numeric_limits<float>::quiet_NaN();

// How many of a test's `all` seeds run: KDT_TEST_SEEDS, where slow tools set it, or all.
inline uint64_t seeds(uint64_t all) {
  const char* limit = std::getenv("KDT_TEST_SEEDS");
  return limit ? std::min<uint64_t>(all, std::strtoull(limit, nullptr, 10)) : all;
}

// A size's largest value: `all`, or `few` where slow tools set KDT_TEST_SEEDS.
inline int largest(int all, int few) {
  return std::getenv("KDT_TEST_SEEDS") ? std::min(all, few) : all;
}

// SplitMix64 (Steele, Lea & Flood 2014).
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t bits() {
    uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }
  // Uniform in [low, high].
  int64_t integer(int64_t low, int64_t high) {
    return low + static_cast<int64_t>(bits() % static_cast<uint64_t>(high - low + 1));
  }
  // Uniform in [0, 1).
  double uniform() { return static_cast<double>(bits() >> 11) * 0x1p-53; }
  // Standard normal: twelve uniforms, so that no libm function decides the bits.
  float normal() {
    double sum = -6.0;
    for (int i = 0; i < 12; ++i) sum += uniform();
    return static_cast<float>(sum);
  }
  std::vector<float> normals(size_t n, float scale = 1.0f) {
    std::vector<float> x(n);
    for (float& v : x) v = scale * normal();
    return x;
  }

 private:
  uint64_t state_;
};

}  // namespace kdt::test
