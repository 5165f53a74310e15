// Compiled once per ISA (see simd.h).
#include "cpu/simd.h"

namespace kdt::cpu::KDT_ISA {

bool logit_scan(const float* x, int n, float* max_out) {
  const f32x16 lowest = broadcast(-3.40282347e38f);
  f32x16 largest = broadcast(-__builtin_inff()), fault = zero();
  for (int i = 0; i < n; i += kLanes) {
    const f32x16 v = load(x + i);
    largest = max(largest, v);
    // 0 for every number and -inf, NaN for NaN and +inf (NaN in the second operand passes max).
    fault = fma(max(lowest, v), zero(), fault);
  }
  *max_out = max_lane(largest);
  return sum(fault) == 0.0f;
}

float logit_exp_sum(const float* x, int n, float max_logit) {
  const f32x16 shift = broadcast(max_logit);
  f32x16 total = zero();
  for (int i = 0; i < n; i += kLanes) total = add(total, exp(sub(load(x + i), shift)));
  return sum(total);
}

void logit_widen_bf16(const uint16_t* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes) store(y + i, load_bf16(x + i));
}

void logit_widen_f16(const uint16_t* x, float* y, int n) {
  for (int i = 0; i < n; i += kLanes) store(y + i, load_f16(x + i));
}

}  // namespace kdt::cpu::KDT_ISA
