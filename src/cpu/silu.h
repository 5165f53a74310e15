// silu(gate) * up on sixteen lanes, shared by silu_mul and moe_experts.
#pragma once

#include "cpu/simd.h"

namespace kdt::cpu::KDT_ISA {

KDT_INLINE f32x16 silu_times(f32x16 gate, f32x16 up) {
  return mul(div(gate, add(broadcast(1.0f), exp(sub(zero(), gate)))), up);
}

// y may be gate or up. An element's bits do not depend on its place.
inline void silu_mul_span(const float* gate, const float* up, float* y, int64_t n) {
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) store(y + i, silu_times(load(gate + i), load(up + i)));
  const int rest = static_cast<int>(n - i);
  if (rest)
    store_first(y + i, silu_times(load_first(gate + i, rest), load_first(up + i, rest)), rest);
}

}  // namespace kdt::cpu::KDT_ISA
