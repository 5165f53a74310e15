#include "ops/linear.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>

#include "ops/backend.h"
#include "tests/errors.h"
#include "tests/ops/golden.h"
#include "tests/ops/random.h"
#include "tests/ops/tolerance.h"
#include "tests/ops/weights.h"

namespace kdt::test {
namespace {

// The contract: one chain of fused multiply-adds, k ascending.
float chain(const RandomWeight& w, int64_t row, const float* x) {
  float sum = 0.0f;
  for (int64_t k = 0; k < w.source.in_features; ++k) sum = std::fma(x[k], w.at(row, k), sum);
  return sum;
}

struct Shape {
  int groups;
  int64_t out, in;
  int64_t x_gap = 0, y_gap = 0;  // padding between rows
  bool shared_x = false;         // all groups read the same row
  bool accumulate = false;
};

// Runs the first n rows of one input, for every n of `row_counts`, and compares every bit with the
// chain; gaps between rows must keep their poison.
void expect_chain(const PackedWeight& weight, const Shape& s, const std::vector<int>& row_counts) {
  const int64_t most = *std::max_element(row_counts.begin(), row_counts.end());
  Random random(most);
  const int64_t x_groups = s.shared_x ? 1 : s.groups;
  const int64_t x_stride = x_groups * s.in + s.x_gap, y_stride = s.groups * s.out + s.y_gap;
  const std::vector<float> x = random.normals(most * x_stride);
  std::vector<float> before(most * y_stride, kPoison);
  if (s.accumulate) before = random.normals(before.size());
  std::vector<float> want = before;
  for (int64_t m = 0; m < most; ++m) {
    for (int64_t j = 0; j < s.groups * s.out; ++j) {
      const int64_t g = j / s.out;
      const float* row = x.data() + m * x_stride + (s.shared_x ? 0 : g * s.in);
      const float sum = chain(weight.sources[g], j % s.out, row);
      want[m * y_stride + j] = s.accumulate ? before[m * y_stride + j] + sum : sum;
    }
  }
  for (const int n_rows : row_counts) {
    std::vector<float> y = before;
    linear(weight.backend, {.x = x.data(),
                            .y = y.data(),
                            .weight = &weight.packed,
                            .n_rows = n_rows,
                            .x_row_stride = x_stride,
                            .x_group_stride = s.shared_x ? 0 : s.in,
                            .y_row_stride = y_stride,
                            .y_group_stride = s.out,
                            .accumulate = s.accumulate});
    for (int64_t i = 0; i < most * y_stride; ++i) {
      const float expected = i < n_rows * y_stride ? want[i] : before[i];
      ASSERT_EQ(std::bit_cast<uint32_t>(y[i]), std::bit_cast<uint32_t>(expected))
          << "row " << i / y_stride << " of " << n_rows << ", column " << i % y_stride << ": "
          << y[i] << ", expected " << expected;
    }
  }
}

const char* name(WeightFormat format) {
  constexpr const char* kNames[] = {"f32", "f16", "bf16", "int4", "fp8"};
  return kNames[static_cast<int>(format)];
}

TEST(Linear, EveryRowCountGivesTheChain) {
  for (WeightFormat format : kAllFormats) {
    SCOPED_TRACE(name(format));
    const Shape shape = {.groups = 1, .out = 163, .in = 160};
    const PackedWeight weight(cpu_backend(), format, shape.groups, shape.out, shape.in, 1);
    std::vector<int> row_counts(70);
    std::iota(row_counts.begin(), row_counts.end(), 1);
    expect_chain(weight, shape, row_counts);
    expect_chain(weight, shape, {96, 97, 200});
  }
}

TEST(Linear, OddShapesGroupsStridesAndAccumulate) {
  const Shape shapes[] = {
      {.groups = 1, .out = 1, .in = 8},
      {.groups = 3, .out = 15, .in = 264, .x_gap = 3, .y_gap = 5},
      {.groups = 4, .out = 17, .in = 136, .y_gap = 1, .shared_x = true},
      {.groups = 2, .out = 48, .in = 520, .x_gap = 1, .accumulate = true},
      {.groups = 5, .out = 33, .in = 24, .x_gap = 9, .shared_x = true, .accumulate = true},
      {.groups = 1, .out = 300, .in = 128, .accumulate = true},
      {.groups = 1, .out = 70, .in = 1000},
  };
  for (WeightFormat format : kAllFormats) {
    for (const Shape& shape : shapes) {
      SCOPED_TRACE(name(format) + std::string(" in ") + std::to_string(shape.in));
      const PackedWeight weight(cpu_backend(), format, shape.groups, shape.out, shape.in, 2,
                                DType::kBF16, 8, 48);
      expect_chain(weight, shape, {1, 2, 3, 4, 5, 8, 9, 12, 13, 25});
    }
  }
}

TEST(Linear, OddInFeatures) {
  for (WeightFormat format :
       {WeightFormat::kF32, WeightFormat::kF16, WeightFormat::kBF16, WeightFormat::kFp8Block}) {
    for (int64_t in : {1, 3, 127, 129, 255, 257}) {
      for (int block : {1, 11, 128, 1000}) {
        if (block != 128 && format != WeightFormat::kFp8Block) continue;
        SCOPED_TRACE(name(format) + std::string(" in ") + std::to_string(in));
        const Shape shape = {.groups = 2, .out = 21, .in = in};
        const PackedWeight weight(cpu_backend(), format, 2, shape.out, in, 3, DType::kF32, 32,
                                  block);
        expect_chain(weight, shape, {1, 2, 4, 7, 30});
      }
    }
  }
}

TEST(Linear, ScaleTypesAndGroupSizes) {
  for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
    for (int group_size : {8, 16, 24, 32, 96, 192}) {
      const Shape shape = {.groups = 1, .out = 40, .in = 192};
      const PackedWeight int4(cpu_backend(), WeightFormat::kInt4Group, 1, shape.out, shape.in, 4,
                              dtype, group_size);
      const PackedWeight fp8(cpu_backend(), WeightFormat::kFp8Block, 1, shape.out, shape.in, 5,
                             dtype, 32, group_size);
      expect_chain(int4, shape, {1, 3, 6, 20});
      expect_chain(fp8, shape, {1, 3, 6, 20});
    }
  }
}

TEST(Linear, EveryCodeOfEveryFormatExpandsExactly) {
  std::vector<uint16_t> halves(65536);
  std::vector<uint8_t> bytes(256);
  for (uint32_t i = 0; i < 65536; ++i) halves[i] = static_cast<uint16_t>(i);
  for (uint32_t i = 0; i < 256; ++i) bytes[i] = (i & 0x7f) == 0x7f ? 0 : static_cast<uint8_t>(i);
  const float one = 1.0f;
  const LinearSource sources[] = {{.format = WeightFormat::kBF16,
                                   .out_features = 65536,
                                   .in_features = 1,
                                   .data = halves.data()},
                                  {.format = WeightFormat::kF16,
                                   .out_features = 65536,
                                   .in_features = 1,
                                   .data = halves.data()},
                                  {.format = WeightFormat::kFp8Block,
                                   .out_features = 256,
                                   .in_features = 1,
                                   .data = bytes.data(),
                                   .scale = &one,
                                   .scale_dtype = DType::kF32,
                                   .block_size = 256}};
  for (const LinearSource& source : sources) {
    LinearWeight w = pack_linear(cpu_backend(), {&source, 1});
    std::vector<float> y(source.out_features);
    linear(cpu_backend(), {.x = &one, .y = y.data(), .weight = &w, .n_rows = 1});
    for (int64_t i = 0; i < source.out_features; ++i) {
      const float want = source.format == WeightFormat::kBF16  ? bf16_to_f32(halves[i])
                         : source.format == WeightFormat::kF16 ? f16_to_f32(halves[i])
                                                               : f8e4m3_to_f32(bytes[i]);
      if (std::isnan(want)) {
        ASSERT_TRUE(std::isnan(y[i])) << name(source.format) << " " << i;
      } else {
        ASSERT_EQ(y[i], want) << name(source.format) << " " << i;
      }
    }
    cpu_backend().deallocate(w.data, w.bytes);
  }
}

TEST(Linear, NanAndInfinityStayInTheirRow) {
  const PackedWeight weight(cpu_backend(), WeightFormat::kBF16, 1, 40, 64, 6);
  for (int n_rows : {2, 8, 30}) {
    std::vector<float> x(n_rows * 64, 1.0f), y(n_rows * 40, kPoison);
    x[64 + 5] = std::numeric_limits<float>::quiet_NaN();
    linear(cpu_backend(), {.x = x.data(),
                           .y = y.data(),
                           .weight = &weight.packed,
                           .n_rows = n_rows,
                           .x_row_stride = 64,
                           .y_row_stride = 40});
    for (int64_t i = 0; i < n_rows * 40; ++i) {
      ASSERT_EQ(std::isnan(y[i]), i / 40 == 1) << i;
    }
  }
}

TEST(Linear, NoRowsIsNoWork) {
  const PackedWeight weight(cpu_backend(), WeightFormat::kF32, 1, 16, 16, 7);
  EXPECT_NO_THROW(linear(cpu_backend(), {.weight = &weight.packed}));
}

TEST(Linear, PackedBytesFollowTheFormat) {
  const size_t elements = 3 * 256 * 512;
  const auto bytes = [](WeightFormat format) {
    return PackedWeight(cpu_backend(), format, 3, 256, 512, 8).packed.bytes;
  };
  EXPECT_EQ(bytes(WeightFormat::kF32), 64 + elements * 4);
  EXPECT_EQ(bytes(WeightFormat::kBF16), 64 + elements * 2);
  EXPECT_EQ(bytes(WeightFormat::kInt4Group), 64 + elements / 2 + elements / 32 * 4);
  EXPECT_EQ(bytes(WeightFormat::kFp8Block), 64 + elements + elements / 128 * 4);
}

// The bundle's weight as sources; `codes` keeps the bytes.
std::vector<LinearSource> golden_sources(const Golden& g, std::vector<uint8_t>* codes) {
  const auto shape = g.shape("data");
  const DType dtype = g.dtype("data");
  if (dtype == DType::kBF16) {
    for (float v : g.floats("data")) append_float(codes, dtype, v);
  } else {
    *codes = g.bytes("data");
  }
  const bool int4 = dtype == DType::kI32, fp8 = dtype == DType::kF8E4M3;
  std::vector<LinearSource> sources;
  for (int64_t i = 0; i < shape[0]; ++i) {
    LinearSource s = {.format = int4                   ? WeightFormat::kInt4Group
                                : fp8                  ? WeightFormat::kFp8Block
                                : dtype == DType::kF32 ? WeightFormat::kF32
                                : dtype == DType::kF16 ? WeightFormat::kF16
                                                       : WeightFormat::kBF16,
                      .out_features = shape[1],
                      .in_features = int4 ? shape[2] * 8 : shape[2],
                      .data = codes->data() + i * (codes->size() / shape[0])};
    if (int4) s.group_size = g.scalar<int32_t>("group_size");
    if (fp8) s.block_size = g.scalar<int32_t>("block_size");
    sources.push_back(s);
  }
  return sources;
}

TEST(Linear, Golden) {
  for (const Golden& g : golden_bundles("linear")) {
    SCOPED_TRACE(g.label());
    std::vector<uint8_t> codes, scales;
    std::vector<LinearSource> sources = golden_sources(g, &codes);
    if (g.has("scale")) {
      scales = g.bytes("scale");
      for (size_t i = 0; i < sources.size(); ++i) {
        sources[i].scale = scales.data() + i * (scales.size() / sources.size());
        sources[i].scale_dtype = g.dtype("scale");
      }
    }
    LinearWeight w = pack_linear(cpu_backend(), sources);
    const auto x = g.floats("x"), want = g.floats("y");
    std::vector<float> y(want.size(), kPoison);
    linear(cpu_backend(), {.x = x.data(),
                           .y = y.data(),
                           .weight = &w,
                           .n_rows = static_cast<int32_t>(g.shape("x")[0]),
                           .x_row_stride = w.n_groups * w.in_features,
                           .x_group_stride = w.in_features,
                           .y_row_stride = w.n_groups * w.out_features,
                           .y_group_stride = w.out_features});
    EXPECT_LE(relative_error(y.data(), want.data(), y.size()),
              tolerance(DType::kF32, static_cast<double>(w.in_features)));
    cpu_backend().deallocate(w.data, w.bytes);
  }
}

TEST(Linear, RefusesBadSources) {
  const auto refuse = [](const std::string& part, auto change) {
    RandomWeight w = random_weight(WeightFormat::kInt4Group, 32, 64, 9);
    LinearSource sources[2] = {w.source, w.source};
    change(sources);
    expect_error(ErrorCode::kInvalidArgument, "pack_linear: " + part,
                 [&] { pack_linear(cpu_backend(), sources); });
  };
  refuse("data is null", [](LinearSource* s) { s[1].data = nullptr; });
  refuse("scale is null", [](LinearSource* s) { s[0].scale = nullptr; });
  refuse("scale_dtype is i32", [](LinearSource* s) { s[0].scale_dtype = DType::kI32; });
  refuse("out_features is 16, expected 32", [](LinearSource* s) { s[1].out_features = 16; });
  refuse("in_features is 128, expected 64", [](LinearSource* s) { s[1].in_features = 128; });
  refuse("format is 0, expected 3", [](LinearSource* s) { s[1].format = WeightFormat::kF32; });
  refuse("format is 9", [](LinearSource* s) { s[0].format = static_cast<WeightFormat>(9); });
  refuse("out_features is 0", [](LinearSource* s) { s[0].out_features = 0; });
  refuse("in_features is -8", [](LinearSource* s) { s[0].in_features = -8; });
  refuse("in_features is 4611686018427387904",
         [](LinearSource* s) { s[0].in_features = int64_t{1} << 62; });
  refuse("group_size is 0", [](LinearSource* s) { s[0].group_size = 0; });
  refuse("group_size is 12", [](LinearSource* s) { s[0].group_size = 12; });
  refuse("in_features is 64, expected a multiple of group_size 40",
         [](LinearSource* s) { s[0].group_size = 40; });
  refuse("group_size is 64, expected 32", [](LinearSource* s) { s[1].group_size = 64; });
  refuse("block_size is 0", [](LinearSource* s) {
    s[0].format = WeightFormat::kFp8Block;
    s[0].block_size = 0;
  });
  expect_error(ErrorCode::kInvalidArgument, "number of groups is 0",
               [] { pack_linear(cpu_backend(), {}); });
}

TEST(Linear, RefusesNanInFp8AndMoreMemoryThanThereIs) {
  RandomWeight w = random_weight(WeightFormat::kFp8Block, 32, 64, 10);
  w.data[1 + 17] = 0xff;
  expect_error(ErrorCode::kNumeric, "NaN", [&] { pack_linear(cpu_backend(), {&w.source, 1}); });
  const LinearSource huge = {.format = WeightFormat::kF32,
                             .out_features = 1 << 28,
                             .in_features = 1 << 28,
                             .data = w.data.data()};
  expect_error(ErrorCode::kOutOfResources, "288230376151711808 bytes", [&] {
    pack_linear(cpu_backend(), {&huge, 1});
  });
}

TEST(Linear, RefusesBadArguments) {
  const PackedWeight weight(cpu_backend(), WeightFormat::kF32, 2, 24, 16, 11);
  std::vector<float> x(4 * 32), y(4 * 48);
  const auto refuse = [&](const std::string& part, auto change) {
    LinearParams p = {.x = x.data(),
                      .y = y.data(),
                      .weight = &weight.packed,
                      .n_rows = 4,
                      .x_row_stride = 32,
                      .x_group_stride = 16,
                      .y_row_stride = 48,
                      .y_group_stride = 24};
    change(p);
    expect_error(ErrorCode::kInvalidArgument, "linear: " + part, [&] { linear(cpu_backend(), p); });
  };
  const LinearWeight empty;
  refuse("weight is null", [](LinearParams& p) { p.weight = nullptr; });
  refuse("weight.data is null", [&](LinearParams& p) { p.weight = &empty; });
  refuse("x is null", [](LinearParams& p) { p.x = nullptr; });
  refuse("y is null", [](LinearParams& p) { p.y = nullptr; });
  refuse("n_rows is -1", [](LinearParams& p) { p.n_rows = -1; });
  refuse("x_row_stride is 15, expected at least 16", [](LinearParams& p) { p.x_row_stride = 15; });
  refuse("y_row_stride is 23, expected at least 24", [](LinearParams& p) { p.y_row_stride = 23; });
  refuse("x_group_stride is -1", [](LinearParams& p) { p.x_group_stride = -1; });
  refuse("y_group_stride is 23", [](LinearParams& p) { p.y_group_stride = 23; });
  refuse("y_group_stride is 30", [](LinearParams& p) { p.y_group_stride = 30; });
}

}  // namespace
}  // namespace kdt::test
