#include "ops/embedding.h"

#include <cstring>

#include "base/error.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"

namespace kdt::cpu {
namespace {

template <typename Widen>
void widen_row(const void* table, int64_t row, int64_t hidden, float* out, Widen widen) {
  const char* codes = static_cast<const char*>(table) + row * hidden * 2;
  for (int64_t i = 0; i < hidden; ++i) {
    uint16_t code;  // the table may be a checkpoint's, which gives no alignment
    std::memcpy(&code, codes + i * 2, 2);
    out[i] = widen(code);
  }
}

}  // namespace

void embedding(const EmbeddingParams& p, Stream) {
  for (int32_t m = 0; m < p.n_rows; ++m) {
    if (p.tokens[m] < 0 || p.tokens[m] >= p.vocab) {
      throw_error(ErrorCode::kInvalidArgument, "embedding: tokens[{}] is {}, expected 0..{}", m,
                  p.tokens[m], p.vocab - 1);
    }
  }
  const int64_t hidden = p.hidden;
  parallel_for(p.n_rows, p.n_rows * hidden > 200'000, [&](int64_t m) {
    float* out = p.out + m * hidden;
    const int64_t row = p.tokens[m];
    if (p.dtype == DType::kF32) {
      std::memcpy(out, static_cast<const char*>(p.table) + row * hidden * 4, hidden * 4);
    } else if (p.dtype == DType::kBF16) {
      widen_row(p.table, row, hidden, out, bf16_to_f32);
    } else {
      widen_row(p.table, row, hidden, out, f16_to_f32);
    }
  });
}

}  // namespace kdt::cpu
