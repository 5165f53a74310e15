// embedding: rows of the embedding table as fp32.
#pragma once

#include <cstdint>

#include "base/dtype.h"
#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct EmbeddingParams {
  const int32_t* tokens = nullptr;  // [M], each in [0, vocab); others throw, on CUDA give NaN rows
  const void* table = nullptr;      // [vocab, hidden] of `dtype` (f32, f16, bf16); on CUDA aligned
  DType dtype = DType::kBF16;
  float* out = nullptr;  // [M, hidden]
  int32_t n_rows = 0;
  int32_t hidden = 0;
  int32_t vocab = 0;
};

void check(const EmbeddingParams& p);
void embedding(const Backend& backend, const EmbeddingParams& p, Stream stream = {});

}  // namespace kdt
