// silu_mul: y = silu(gate) * up, silu(x) = x / (1 + exp(-x)) (SwiGLU, arXiv 2002.05202).
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct SiluMulParams {
  const float* gate = nullptr;  // [n]
  const float* up = nullptr;    // [n]
  float* y = nullptr;           // [n]; may be gate or up
  int64_t n = 0;
};

void check(const SiluMulParams& p);
void silu_mul(const Backend& backend, const SiluMulParams& p, Stream stream = {});

}  // namespace kdt
