// The matrix product behind linear and moe_experts, on weights packed into panels.
//
// A panel is 16 output features, k ascending, so that one vector of weights meets one broadcast x:
//   panel: segments; segment: [16 fp32 scales, quantized formats only] [codes of `segment` k's]
//   f32, f16: codes [k][16]; bf16, fp8: [k / 2][16][2], so that two k's share one vector load;
//   int4: [k / 2][16] bytes, even k in the low nibble
// An odd last k is padded with a zero code. fp8 scales are stored times 2^8 (linear_expand.h).
// Every output element is one chain acc = fma(x[k], w[k], acc), k ascending from 0: its bits depend
// on nothing else, neither row count nor tiling nor ISA.
// Plain types only: this header is compiled for several ISAs (simd.h).
#pragma once

#include <stdint.h>

namespace kdt::cpu {

inline constexpr int kPanelOutputs = 16;
inline constexpr int kMaxBlockRows = 96;  // rows of one GemmBlock; bounds the stack it needs

enum class PanelFormat { kF32, kF16, kBF16, kInt4, kFp8 };

struct PanelMatrix {
  PanelFormat format = PanelFormat::kF32;
  const uint8_t* data = nullptr;
  int64_t out_features = 0;
  int64_t in_features = 0;
  int64_t segment = 0;  // k's under one scale vector; dense formats: in_features
  int64_t segment_bytes = 0;
  int64_t panel_bytes = 0;
};

// y[y_rows[i]] (+)= W x[x_rows[i]] for i in [row_begin, row_end), outputs of panels
// [panel_begin, panel_end). Null row lists mean the row itself.
struct GemmBlock {
  PanelMatrix weight;
  const float* x = nullptr;
  int64_t x_stride = 0;
  const int32_t* x_rows = nullptr;
  float* y = nullptr;
  int64_t y_stride = 0;
  const int32_t* y_rows = nullptr;
  bool accumulate = false;
  int32_t row_begin = 0, row_end = 0;  // at most kMaxBlockRows
  int64_t panel_begin = 0, panel_end = 0;
};

namespace avx2 {
void gemm(const GemmBlock& block);
}
namespace avx512 {
void gemm(const GemmBlock& block);
}

}  // namespace kdt::cpu
