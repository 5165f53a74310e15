// linear: y = x W^T for the weights of a checkpoint, kept in memory in their own precision.
#pragma once

#include <cstdint>
#include <span>

#include "base/dtype.h"
#include "ops/row_batch.h"

namespace kdt {

struct Backend;

enum class WeightFormat {
  kF32,
  kF16,
  kBF16,
  kInt4Group,  // compressed-tensors pack-quantized, symmetric: w = (nibble - 8) * scale
  kFp8Block,   // DeepSeek e4m3 blocks: w = value * scale_inv
};

// One weight matrix as it lies in a checkpoint, row major, byte-aligned, host memory.
struct LinearSource {
  WeightFormat format = WeightFormat::kBF16;
  int64_t out_features = 0;
  int64_t in_features = 0;
  // dense: [out, in]; kInt4Group: int32 [out, in / 8], lowest nibble first; kFp8Block: [out, in]
  const void* data = nullptr;
  const void* scale = nullptr;  // kInt4Group: [out, in / group]; kFp8Block: ceil-divided blocks
  DType scale_dtype = DType::kBF16;
  int32_t group_size = 32;   // kInt4Group
  int32_t block_size = 128;  // kFp8Block, both dimensions
};

// G weight matrices of equal shape and format in the backend's own layout (heads of an absorbed
// projection, experts of a layer; G = 1 otherwise). Owned by whoever called pack_linear.
struct LinearWeight {
  WeightFormat format = WeightFormat::kBF16;
  int32_t n_groups = 0;  // G
  int64_t out_features = 0;
  int64_t in_features = 0;
  size_t bytes = 0;      // memory held
  void* data = nullptr;  // backend layout
};

// Throws kInvalidArgument when the sources differ in shape or format or are empty, kNumeric for NaN
// among FP8 codes or scales.
LinearWeight pack_linear(const Backend& backend, std::span<const LinearSource> groups);

// Group g of row m: y[m, g, :] (+)= W[g] x[m, g, :]. Every output element is one sum over `in`
// whose order does not depend on n_rows; with `accumulate` the finished sum is added to y.
// y must not overlap x.
struct LinearParams {
  const float* x = nullptr;  // [M, G, in]
  float* y = nullptr;        // [M, G, out]
  const LinearWeight* weight = nullptr;
  int32_t n_rows = 0;          // M, 0 allowed
  int64_t x_row_stride = 0;    // elements
  int64_t x_group_stride = 0;  // elements; may be 0 (all groups read the same row) or when G = 1
  int64_t y_row_stride = 0;
  int64_t y_group_stride = 0;
  bool accumulate = false;
};

void check(const LinearParams& p);
void linear(const Backend& backend, const LinearParams& p, Stream stream = {});

}  // namespace kdt
