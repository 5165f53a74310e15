// Exponentials of base 2, in which scores and logits are taken.
#pragma once

namespace kdt::cuda::device {

constexpr float kLog2E = 1.44269504089f;
constexpr float kLn2 = 0.69314718056f;

// 2^x within 2^-22 of itself; 0 where that is subnormal.
__device__ __forceinline__ float exp2_estimate(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace kdt::cuda::device
