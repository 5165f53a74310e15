// The vectorized passes over a row of logits that draft_topk and the sampler share.
#pragma once

#include <cstdint>
#include <limits>

#include "base/dtype.h"
#include "base/rounding.h"

namespace kdt::cpu {

inline constexpr int kLogitBlock = 1024;

// One set per ISA, with the same bits. n is a multiple of 16.
struct LogitKernels {
  // Returns whether no logit is NaN or +inf; then *max is the largest.
  bool (*scan)(const float* x, int n, float* max);
  // sum of exp(x - max), lanes first; NaN if any x - max is NaN.
  float (*exp_sum)(const float* x, int n, float max);
  void (*widen_bf16)(const uint16_t* x, float* y, int n);
  void (*widen_f16)(const uint16_t* x, float* y, int n);
};

const LogitKernels& logit_kernels();

// n values of f32, bf16 or f16 as fp32.
void widen(const void* x, DType dtype, int n, float* y);

// fn(x, n, first): the logits of ids first .. as fp32 in ascending blocks of at most kLogitBlock,
// n a multiple of 16, padded with -inf past the vocabulary.
template <typename Fn>
void for_each_block(const void* logits, DType dtype, int32_t vocab, const Fn& fn) {
  float wide[kLogitBlock];
  for (int32_t first = 0; first < vocab; first += kLogitBlock) {
    const int count = vocab - first < kLogitBlock ? vocab - first : kLogitBlock;
    const int padded = round_up(count, 16);
    const char* source = static_cast<const char*>(logits) + first * dtype_bytes(dtype);
    if (dtype == DType::kF32 && padded == count) {
      fn(reinterpret_cast<const float*>(source), count, first);
      continue;
    }
    widen(source, dtype, count, wide);
    for (int i = count; i < padded; ++i) wide[i] = -std::numeric_limits<float>::infinity();
    fn(wide, padded, first);
  }
}

}  // namespace kdt::cpu
