// Philox4x32-10, the counter-based generator of Salmon, Moraes, Dror, Shaw, "Parallel random
// numbers: as easy as 1, 2, 3" (SC 2011), and Gumbel noise from its numbers.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

struct PhiloxKey {
  uint32_t low, high;
};

__device__ __forceinline__ uint4 philox4x32(uint4 counter, PhiloxKey key) {
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const uint64_t p0 = uint64_t{0xD2511F53} * counter.x;
    const uint64_t p1 = uint64_t{0xCD9E8D57} * counter.z;
    counter = {static_cast<uint32_t>(p1 >> 32) ^ counter.y ^ key.low, static_cast<uint32_t>(p1),
               static_cast<uint32_t>(p0 >> 32) ^ counter.w ^ key.high, static_cast<uint32_t>(p0)};
    key.low += 0x9E3779B9;
    key.high += 0xBB67AE85;
  }
  return counter;
}

// -log(-log u), u = (x + 0.5) 2^-32.
__device__ __forceinline__ double gumbel(uint32_t x) {
  const double u = (x + 0.5) * 0x1p-32;
  return -log(-log(u));
}

// The same within 2e-5. Near u = 1 the inner logarithm is a series in y = 1 - u, which fp32 holds.
__device__ __forceinline__ float gumbel_estimate(uint32_t x) {
  const float y = (static_cast<float>(~x) + 0.5f) * 0x1p-32f;
  const float u = (static_cast<float>(x) + 0.5f) * 0x1p-32f;
  const float series = y * (1.0f + y * (0.5f + y * (0.33333333f + y * (0.25f + y * 0.2f))));
  const float minus_log = y < 0.0625f ? series : -__logf(u);
  return -__logf(minus_log);
}

// Bounds of the noise: log(33 log 2) and 33 log 2, rounded away from it.
constexpr float kLeastGumbel = -3.14f, kLargestGumbel = 22.9f;

}  // namespace kdt::cuda::device
