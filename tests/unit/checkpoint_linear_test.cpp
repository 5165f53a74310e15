#include <gtest/gtest.h>

#include <cmath>

#include "base/dtype.h"
#include "checkpoint/linear_source.h"
#include "checkpoint_files.h"

namespace kdt::checkpoint {
namespace {

constexpr auto kInt4 = QuantizationConfig::Format::kInt4Pack;
constexpr auto kFp8 = QuantizationConfig::Format::kFp8Block;
const QuantizationConfig kNoQuantization;
const QuantizationConfig kInt4Groups{.format = kInt4, .group_size = 32, .block_size = 0};
const QuantizationConfig kFp8Blocks{.format = kFp8, .group_size = 0, .block_size = 128};

// A checkpoint of these tensors, behind one odd byte so that nothing is aligned.
class Directory {
 public:
  explicit Directory(std::vector<TestTensor> tensors) {
    tensors.insert(tensors.begin(), zeros("odd", "U8", {1}));
    dir_.write("model.safetensors", safetensors(tensors));
  }
  Checkpoint open() const { return Checkpoint(dir_.path()); }

 private:
  TempDir dir_;
};

// All rows, in two calls, over poisoned memory.
std::vector<float> dequantize(const LinearSource& source) {
  std::vector<float> out(static_cast<size_t>(source.out_features * source.in_features), NAN);
  const int64_t half = source.out_features / 2;
  dequantize_rows(source, 0, half, out.data());
  dequantize_rows(source, half, source.out_features - half, out.data() + half * source.in_features);
  return out;
}

int int4_value(int64_t row, int64_t column) {
  return static_cast<int>((row * 5 + column * 3 + column / 16) % 16) - 8;
}
float scale_value(int64_t row, int64_t group) {
  return std::ldexp(1.0f + static_cast<float>(row % 4) * 0.25f, static_cast<int>(group % 5) - 6);
}

std::vector<TestTensor> int4_tensors(int64_t out, int64_t in, const std::string& scale_dtype,
                                     const std::string& shape_dtype) {
  std::vector<uint32_t> words(static_cast<size_t>(out * in / 8));
  for (int64_t row = 0; row < out; ++row)
    for (int64_t i = 0; i < in; ++i)
      words[static_cast<size_t>((row * in + i) / 8)] |=
          static_cast<uint32_t>(int4_value(row, i) + 8) << (4 * (i % 8));
  std::vector<float> scales;
  std::vector<uint16_t> narrow_scales;
  for (int64_t row = 0; row < out; ++row)
    for (int64_t group = 0; group < in / 32; ++group) {
      const float scale = scale_value(row, group);
      scales.push_back(scale);
      narrow_scales.push_back(scale_dtype == "F16" ? f32_to_f16(scale) : f32_to_bf16(scale));
    }
  const bool wide = shape_dtype == "I64";
  return {
      {"m.weight_packed", "I32", {out, in / 8}, bytes_of(words)},
      {"m.weight_scale",
       scale_dtype,
       {out, in / 32},
       scale_dtype == "F32" ? bytes_of(scales) : bytes_of(narrow_scales)},
      {"m.weight_shape",
       shape_dtype,
       {2},
       wide ? bytes_of(std::vector<int64_t>{out, in})
            : bytes_of(std::vector<int32_t>{static_cast<int32_t>(out), static_cast<int32_t>(in)})}};
}

TEST(LinearSource, Int4MatchesTheClosedForm) {
  for (const char* scale_dtype : {"BF16", "F16", "F32"})
    for (const char* shape_dtype : {"I64", "I32"}) {
      const Directory dir(int4_tensors(6, 96, scale_dtype, shape_dtype));
      const Checkpoint checkpoint = dir.open();
      const LinearSource source = load_linear(checkpoint, kInt4Groups, "m", 6, 96);
      EXPECT_EQ(source.format, LinearFormat::kInt4Pack);
      EXPECT_EQ(source.block, 32);
      const std::vector<float> found = dequantize(source);
      for (int64_t row = 0; row < 6; ++row)
        for (int64_t i = 0; i < 96; ++i)
          ASSERT_EQ(found[static_cast<size_t>(row * 96 + i)],
                    static_cast<float>(int4_value(row, i)) * scale_value(row, i / 32))
              << scale_dtype << " row " << row << " column " << i;
    }
}

TEST(LinearSource, Fp8BlocksMatchTheClosedForm) {
  constexpr int64_t kOut = 130, kIn = 300;  // partial blocks both ways
  std::vector<uint8_t> codes;
  for (int64_t i = 0; i < kOut * kIn; ++i) {
    const auto code = static_cast<uint8_t>(i % 256);
    codes.push_back((code & 0x7f) == 0x7f ? 0 : code);
  }
  std::vector<float> scales;
  for (int block = 0; block < 2 * 3; ++block) scales.push_back(std::ldexp(1.5f, block - 3));
  const Directory dir({{"m.weight", "F8_E4M3", {kOut, kIn}, bytes_of(codes)},
                       {"m.weight_scale_inv", "F32", {2, 3}, bytes_of(scales)}});
  const Checkpoint checkpoint = dir.open();
  const LinearSource source = load_linear(checkpoint, kFp8Blocks, "m", kOut, kIn);
  EXPECT_EQ(source.format, LinearFormat::kFp8Block);
  const std::vector<float> found = dequantize(source);
  for (int64_t row = 0; row < kOut; ++row)
    for (int64_t i = 0; i < kIn; ++i) {
      const auto at = static_cast<size_t>(row * kIn + i);
      ASSERT_EQ(found[at],
                f8e4m3_to_f32(codes[at]) * scales[static_cast<size_t>(row / 128 * 3 + i / 128)])
          << row << ", " << i;
    }
}

TEST(LinearSource, DenseFormats) {
  const std::vector<float> values = {0.5f, -1.0f, 2.0f, 0.0f, 3.5f, -0.25f};
  std::vector<uint16_t> bf16, f16;
  for (const float value : values) {
    bf16.push_back(f32_to_bf16(value));
    f16.push_back(f32_to_f16(value));
  }
  const Directory dir({{"a.weight", "F32", {2, 3}, bytes_of(values)},
                       {"b.weight", "BF16", {2, 3}, bytes_of(bf16)},
                       {"c.weight", "F16", {2, 3}, bytes_of(f16)}});
  const Checkpoint checkpoint = dir.open();
  for (const char* module : {"a", "b", "c"}) {
    // A module the quantizer left alone loads under any config.
    const LinearSource source = load_linear(checkpoint, kInt4Groups, module, 2, 3);
    EXPECT_EQ(source.format, LinearFormat::kDense);
    EXPECT_EQ(source.scales, nullptr);
    EXPECT_EQ(dequantize(source), values) << module;
    release(*source.weight_tensor);
    EXPECT_EQ(dequantize(source), values) << module;
  }
}

TEST(LinearSource, RowsOutOfRangeAreRefused) {
  const Directory dir({zeros("m.weight", "F32", {2, 3})});
  const Checkpoint checkpoint = dir.open();
  const LinearSource source = load_linear(checkpoint, kNoQuantization, "m", 2, 3);
  float out[9];
  EXPECT_THROW(dequantize_rows(source, 1, 2, out), Error);
  EXPECT_THROW(dequantize_rows(source, -1, 1, out), Error);
}

TEST(LinearSource, BrokenParts) {
  const auto int4_with = [](size_t part, TestTensor replacement) {
    std::vector<TestTensor> tensors = int4_tensors(4, 64, "BF16", "I64");
    tensors[part] = std::move(replacement);
    return tensors;
  };
  std::vector<TestTensor> twice = int4_tensors(4, 64, "BF16", "I64");
  twice.push_back(zeros("m.weight", "BF16", {4, 64}));
  const TestTensor fp8 = zeros("m.weight", "F8_E4M3", {4, 64});
  struct Case {
    std::vector<TestTensor> tensors;
    const QuantizationConfig& config;
    const char* expected;
  };
  const std::vector<Case> cases = {
      {{}, kNoQuantization, "tensor m.weight is missing, expected f32 or bf16 or f16 [4, 64]"},
      {{zeros("m.weight", "BF16", {64, 4})}, kNoQuantization, "is bf16 [64, 4], expected f32"},
      {{zeros("m.weight", "I32", {4, 64})}, kNoQuantization, "is i32 [4, 64], expected f32"},
      {int4_tensors(4, 64, "BF16", "I64"), kNoQuantization,
       "config.json has no compressed-tensors"},
      {int4_tensors(4, 64, "BF16", "I64"), kFp8Blocks, "config.json has no compressed-tensors"},
      {int4_tensors(4, 96, "BF16", "I64"), kInt4Groups, "is i32 [4, 12], expected i32 [4, 8]"},
      {int4_with(0, zeros("m.weight_packed", "F32", {4, 8})), kInt4Groups, "is f32 [4, 8]"},
      {int4_with(0, zeros("x", "U8", {1})), kInt4Groups, "m has scales, but no weight"},
      {int4_with(1, zeros("m.weight_scale", "BF16", {4, 1})), kInt4Groups,
       "m.weight_scale is bf16 [4, 1], expected f32 or bf16 or f16 [4, 2]"},
      {int4_with(1, zeros("m.weight_scale", "I32", {4, 2})), kInt4Groups, "m.weight_scale is i32"},
      {int4_with(1, zeros("x", "U8", {1})), kInt4Groups, "tensor m.weight_scale is missing"},
      {int4_with(2, zeros("m.weight_shape", "F32", {2})), kInt4Groups, "m.weight_shape is f32 [2]"},
      {int4_with(2, zeros("m.weight_shape", "I64", {2})), kInt4Groups,
       "m.weight_shape says [0, 0], expected [4, 64]"},
      {twice, kInt4Groups, "m is stored twice"},
      {{fp8}, kNoQuantization, "config.json has no fp8"},
      {{fp8}, kFp8Blocks, "tensor m.weight_scale_inv is missing, expected f32 [1, 1]"},
      {{fp8, zeros("m.weight_scale_inv", "F32", {1, 2})}, kFp8Blocks, "is f32 [1, 2]"},
      {{fp8, zeros("m.weight_scale_inv", "BF16", {1, 1})}, kFp8Blocks, "is bf16 [1, 1]"},
      {{zeros("m.weight", "BF16", {4, 64}), zeros("m.weight_scale_inv", "F32", {1, 1})},
       kFp8Blocks,
       "m has scales, but its weight is bf16 [4, 64], not quantized"},
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.expected);
    const Directory dir(c.tensors);
    const Checkpoint checkpoint = dir.open();
    expect_has(message_of([&] { load_linear(checkpoint, c.config, "m", 4, 64); }), c.expected);
  }
}

TEST(LinearSource, ColumnsMustFillGroups) {
  const Directory dir({zeros("m.weight_packed", "I32", {4, 6})});
  const Checkpoint checkpoint = dir.open();
  expect_has(message_of([&] { load_linear(checkpoint, kInt4Groups, "m", 4, 48); }),
             "has 48 columns, expected a multiple of group_size 32");
}

}  // namespace
}  // namespace kdt::checkpoint
