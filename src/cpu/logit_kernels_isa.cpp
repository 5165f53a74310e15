// Chooses the logit kernels of this machine.
#include <cstring>

#include "cpu/isa.h"
#include "cpu/logit_kernels.h"

#define KDT_DECLARE(isa)                               \
  namespace isa {                                      \
  bool logit_scan(const float*, int, float*);          \
  float logit_exp_sum(const float*, int, float);       \
  void logit_widen_bf16(const uint16_t*, float*, int); \
  void logit_widen_f16(const uint16_t*, float*, int);  \
  }
#define KDT_KERNELS(isa) \
  { isa::logit_scan, isa::logit_exp_sum, isa::logit_widen_bf16, isa::logit_widen_f16 }

namespace kdt::cpu {

KDT_DECLARE(avx2)
KDT_DECLARE(avx512)

const LogitKernels& logit_kernels() {
  static const LogitKernels kernels[2] = {KDT_KERNELS(avx2), KDT_KERNELS(avx512)};
  return kernels[use_avx512()];
}

void widen(const void* x, DType dtype, int n, float* y) {
  if (dtype == DType::kF32) {
    std::memcpy(y, x, n * sizeof(float));
    return;
  }
  const auto* narrow = static_cast<const uint16_t*>(x);
  const bool bf16 = dtype == DType::kBF16;
  const int whole = n / 16 * 16;
  (bf16 ? logit_kernels().widen_bf16 : logit_kernels().widen_f16)(narrow, y, whole);
  for (int i = whole; i < n; ++i) y[i] = bf16 ? bf16_to_f32(narrow[i]) : f16_to_f32(narrow[i]);
}

}  // namespace kdt::cpu
