#include "checkpoint/linear_source.h"

#include "base/error.h"
#include "base/rounding.h"
#include "checkpoint/elements.h"

namespace kdt::checkpoint {
namespace {

constexpr std::initializer_list<DType> kPlainFloats = {DType::kF32, DType::kBF16, DType::kF16};
constexpr int64_t kPerWord = 8;  // 4-bit values in an int32

LinearSource make_source(LinearFormat format, const TensorView& weight, const TensorView* scales,
                         int64_t block, int64_t out_features, int64_t in_features) {
  return {.format = format,
          .out_features = out_features,
          .in_features = in_features,
          .weight = weight.data.data(),
          .dtype = weight.dtype,
          .scales = scales ? scales->data.data() : nullptr,
          .scale_dtype = scales ? scales->dtype : DType::kF32,
          .block = block,
          .weight_tensor = &weight,
          .scale_tensor = scales};
}

// weight_shape repeats [out, in]; where it is present it must agree.
void check_weight_shape(const Checkpoint& checkpoint, const std::string& module,
                        int64_t out_features, int64_t in_features) {
  const std::string name = module + ".weight_shape";
  if (!checkpoint.find(name)) return;
  const TensorView& shape = checkpoint.get(name, {2}, {DType::kI64, DType::kI32});
  const auto at = [&](int64_t i) {
    return shape.dtype == DType::kI64 ? load_unaligned<int64_t>(shape.data.data(), i)
                                      : load_unaligned<int32_t>(shape.data.data(), i);
  };
  if (at(0) != out_features || at(1) != in_features)
    throw_error(ErrorCode::kBadFile, "{}: tensor {} says [{}, {}], expected [{}, {}]",
                shape.file->path(), name, at(0), at(1), out_features, in_features);
}

LinearSource load_int4(const Checkpoint& checkpoint, const QuantizationConfig& quantization,
                       const std::string& module, int64_t out_features, int64_t in_features) {
  const std::string name = module + ".weight_packed";
  if (quantization.format != QuantizationConfig::Format::kInt4Pack)
    throw_error(ErrorCode::kBadFile,
                "{}: tensor {} is INT4, but config.json has no compressed-tensors quantization",
                checkpoint.dir(), name);
  if (checkpoint.find(module + ".weight"))
    throw_error(ErrorCode::kBadFile, "{}: {} is stored twice, as weight and as weight_packed",
                checkpoint.dir(), module);
  const int64_t group = quantization.group_size;
  if (in_features % group != 0)
    throw_error(ErrorCode::kUnsupported,
                "{}: tensor {} has {} columns, expected a multiple of group_size {}",
                checkpoint.dir(), name, in_features, group);
  const TensorView& weight =
      checkpoint.get(name, {out_features, in_features / kPerWord}, {DType::kI32});
  const TensorView& scales =
      checkpoint.get(module + ".weight_scale", {out_features, in_features / group}, kPlainFloats);
  check_weight_shape(checkpoint, module, out_features, in_features);
  return make_source(LinearFormat::kInt4Pack, weight, &scales, group, out_features, in_features);
}

LinearSource load_fp8(const Checkpoint& checkpoint, const QuantizationConfig& quantization,
                      const std::string& module, int64_t out_features, int64_t in_features) {
  const std::string name = module + ".weight";
  if (quantization.format != QuantizationConfig::Format::kFp8Block)
    throw_error(ErrorCode::kBadFile,
                "{}: tensor {} is FP8, but config.json has no fp8 quantization_config",
                checkpoint.dir(), name);
  const int64_t block = quantization.block_size;
  const TensorView& weight = checkpoint.get(name, {out_features, in_features}, {DType::kF8E4M3});
  const TensorView& scales =
      checkpoint.get(module + ".weight_scale_inv",
                     {ceil_div(out_features, block), ceil_div(in_features, block)}, {DType::kF32});
  return make_source(LinearFormat::kFp8Block, weight, &scales, block, out_features, in_features);
}

void dequantize_int4(const LinearSource& source, int64_t row0, int64_t n_rows, float* out) {
  with_float_type(source.scale_dtype, [&](auto scale) {
    const int64_t words = source.in_features / kPerWord;
    const int64_t words_per_scale = source.block / kPerWord;
    for (int64_t w = row0 * words; w < (row0 + n_rows) * words; ++w) {
      const auto word = load_unaligned<uint32_t>(source.weight, w);
      const float s = scale.at(source.scales, w / words_per_scale);
      for (int64_t i = 0; i < kPerWord; ++i)
        *out++ = static_cast<float>(static_cast<int>((word >> (4 * i)) & 0xf) - 8) * s;
    }
  });
}

void dequantize_fp8(const LinearSource& source, int64_t row0, int64_t n_rows, float* out) {
  const int64_t blocks = ceil_div(source.in_features, source.block);
  for (int64_t row = row0; row < row0 + n_rows; ++row)
    for (int64_t i = 0; i < source.in_features; ++i)
      *out++ = f8e4m3_to_f32(source.weight[row * source.in_features + i]) *
               load_unaligned<float>(source.scales, row / source.block * blocks + i / source.block);
}

}  // namespace

LinearSource load_linear(const Checkpoint& checkpoint, const QuantizationConfig& quantization,
                         const std::string& module, int64_t out_features, int64_t in_features) {
  if (checkpoint.find(module + ".weight_packed"))
    return load_int4(checkpoint, quantization, module, out_features, in_features);
  const std::string name = module + ".weight";
  const TensorView* found = checkpoint.find(name);
  if (found && found->dtype == DType::kF8E4M3)
    return load_fp8(checkpoint, quantization, module, out_features, in_features);
  if (checkpoint.find(module + ".weight_scale_inv") || checkpoint.find(module + ".weight_scale"))
    throw_error(
        ErrorCode::kBadFile, "{}: {} has scales, but {}", checkpoint.dir(), module,
        found ? fmt::format("its weight is {}, not quantized", describe(*found)) : "no weight");
  const TensorView& weight = checkpoint.get(name, {out_features, in_features}, kPlainFloats);
  return make_source(LinearFormat::kDense, weight, nullptr, 0, out_features, in_features);
}

void dequantize_rows(const LinearSource& source, int64_t row0, int64_t n_rows, float* out) {
  KDT_CHECK(row0 >= 0 && n_rows >= 0 && n_rows <= source.out_features - row0);
  switch (source.format) {
    case LinearFormat::kDense:
      return with_float_type(source.dtype, [&](auto element) {
        const int64_t first = row0 * source.in_features;
        for (int64_t i = 0; i < n_rows * source.in_features; ++i)
          out[i] = element.at(source.weight, first + i);
      });
    case LinearFormat::kInt4Pack:
      return dequantize_int4(source, row0, n_rows, out);
    case LinearFormat::kFp8Block:
      return dequantize_fp8(source, row0, n_rows, out);
  }
}

}  // namespace kdt::checkpoint
