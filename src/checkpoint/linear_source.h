// The weight of one Linear module in whatever format the checkpoint stores it, as plain pointers
// into the mapped file, for a backend to repack. W is [out_features, in_features], row-major.
//
//   kDense     weight f32, bf16 or f16 [out, in]; no scales
//   kInt4Pack  compressed-tensors "pack-quantized": weight int32 [out, in / 8], element i of a row
//              in word i / 8, bits 4 * (i % 8) .. + 3, stored as q + 8;
//              scales f32, bf16 or f16 [out, in / block]; W = q * scale
//   kFp8Block  DeepSeek-V3: weight f8e4m3 [out, in]; scales ("weight_scale_inv", yet multiplied)
//              f32 [ceil(out / block), ceil(in / block)]; W = weight * scale
#pragma once

#include <cstdint>
#include <string>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"

namespace kdt::checkpoint {

enum class LinearFormat : uint8_t { kDense, kInt4Pack, kFp8Block };

// Valid while its Checkpoint lives. The pointers may be unaligned: use memcpy.
struct LinearSource {
  LinearFormat format = LinearFormat::kDense;
  int64_t out_features = 0;
  int64_t in_features = 0;
  const uint8_t* weight = nullptr;
  DType dtype = DType::kF32;  // element type of `weight` as stored
  const uint8_t* scales = nullptr;
  DType scale_dtype = DType::kF32;
  int64_t block = 0;  // kInt4Pack: columns per scale (group size); kFp8Block: 128

  // Where the pointers come from; scales only in quantized formats.
  const TensorView* weight_tensor = nullptr;
  const TensorView* scale_tensor = nullptr;
};

// `module` is the full module name, prefix included, without ".weight". The tensors on disk decide
// the format; the config must allow it. kBadFile naming tensor, expected and found when a part is
// missing, mistyped, misshapen, or stored twice.
LinearSource load_linear(const Checkpoint& checkpoint, const QuantizationConfig& quantization,
                         const std::string& module, int64_t out_features, int64_t in_features);

// Exact fp32 values of rows [row0, row0 + n_rows), `out` [n_rows, in_features].
void dequantize_rows(const LinearSource& source, int64_t row0, int64_t n_rows, float* out);

}  // namespace kdt::checkpoint
