// simd.h behind plain functions, compiled once per ISA for simd_test.cpp.
#include "cpu/simd.h"

namespace kdt::cpu::KDT_ISA {

void probe_exp(const float* x, float* y) {
  store(y, exp(load(x)));
}
float probe_sum(const float* x) {
  return sum(load(x));
}
float probe_max(const float* x) {
  return max_lane(load(x));
}
void probe_copy_first(const float* x, float* y, int n) {
  store_first(y, load_first(x, n), n);
}
void probe_load_first(const float* x, float* y, int n) {
  store(y, load_first(x, n));
}
void probe_arithmetic(const float* a, const float* b, float* y) {
  const f32x16 x = load(a), w = load(b);
  store(y, div(sub(max(x, w), min(x, w)), add(mul(x, x), fma(w, w, broadcast(1.0f)))));
}
void probe_bf16(const uint16_t* x, float* y) {
  store(y, load_bf16(x));
}
void probe_f16(const uint16_t* x, float* y) {
  store(y, load_f16(x));
}

}  // namespace kdt::cpu::KDT_ISA
