// Random weight matrices in every checkpoint format, and their fp32 values by definition.
#pragma once

#include <cstring>
#include <vector>

#include "base/dtype.h"
#include "ops/backend.h"
#include "ops/linear.h"
#include "tests/ops/random.h"

namespace kdt::test {

inline constexpr WeightFormat kAllFormats[] = {WeightFormat::kF32, WeightFormat::kF16,
                                               WeightFormat::kBF16, WeightFormat::kInt4Group,
                                               WeightFormat::kFp8Block};

// Sources whose bytes start at an odd address, as a checkpoint's may.
struct RandomWeight {
  std::vector<uint8_t> data, scale;
  LinearSource source;
  std::vector<float> values;  // [out, in]

  float at(int64_t row, int64_t k) const { return values[row * source.in_features + k]; }
};

inline void append(std::vector<uint8_t>* bytes, const void* value, size_t n) {
  const auto* p = static_cast<const uint8_t*>(value);
  bytes->insert(bytes->end(), p, p + n);
}

// Appends x rounded to `dtype`; returns the rounded value.
inline float append_float(std::vector<uint8_t>* bytes, DType dtype, float x) {
  if (dtype == DType::kF32) {
    append(bytes, &x, 4);
    return x;
  }
  const uint16_t code = dtype == DType::kBF16 ? f32_to_bf16(x) : f32_to_f16(x);
  append(bytes, &code, 2);
  return dtype == DType::kBF16 ? bf16_to_f32(code) : f16_to_f32(code);
}

inline void fill_int4(RandomWeight* w, Random* random) {
  const LinearSource& s = w->source;
  std::vector<float> scales;
  for (int64_t i = 0; i < s.out_features * (s.in_features / s.group_size); ++i) {
    scales.push_back(append_float(&w->scale, s.scale_dtype, 0.02f * random->normal()));
  }
  for (int64_t i = 0; i < s.out_features * s.in_features; i += 8) {
    const uint32_t word = static_cast<uint32_t>(random->bits());
    append(&w->data, &word, 4);
    for (int64_t j = 0; j < 8; ++j) {
      const int nibble = (word >> (4 * j)) & 15;
      w->values.push_back(static_cast<float>(nibble - 8) * scales[(i + j) / s.group_size]);
    }
  }
}

inline void fill_fp8(RandomWeight* w, Random* random) {
  const LinearSource& s = w->source;
  const int64_t blocks = (s.in_features + s.block_size - 1) / s.block_size;
  const int64_t block_rows = (s.out_features + s.block_size - 1) / s.block_size;
  std::vector<float> scales;
  for (int64_t i = 0; i < block_rows * blocks; ++i) {
    scales.push_back(append_float(&w->scale, s.scale_dtype, 0.01f * random->normal()));
  }
  for (int64_t row = 0; row < s.out_features; ++row) {
    for (int64_t k = 0; k < s.in_features; ++k) {
      uint8_t code = static_cast<uint8_t>(random->bits());
      if ((code & 0x7f) == 0x7f) code ^= 1;  // not NaN
      w->data.push_back(code);
      w->values.push_back(f8e4m3_to_f32(code) *
                          scales[row / s.block_size * blocks + k / s.block_size]);
    }
  }
}

inline RandomWeight random_weight(WeightFormat format, int64_t out, int64_t in, uint64_t seed,
                                  DType scale_dtype = DType::kBF16, int32_t group_size = 32,
                                  int32_t block_size = 128) {
  Random random(seed);
  RandomWeight w;
  w.source = {.format = format,
              .out_features = out,
              .in_features = in,
              .scale_dtype = scale_dtype,
              .group_size = group_size,
              .block_size = block_size};
  w.data.push_back(0);
  w.scale.push_back(0);
  if (format == WeightFormat::kInt4Group) {
    fill_int4(&w, &random);
  } else if (format == WeightFormat::kFp8Block) {
    fill_fp8(&w, &random);
  } else {
    const DType dtype = format == WeightFormat::kF32   ? DType::kF32
                        : format == WeightFormat::kF16 ? DType::kF16
                                                       : DType::kBF16;
    for (int64_t i = 0; i < out * in; ++i) {
      w.values.push_back(append_float(&w.data, dtype, 0.05f * random.normal()));
    }
  }
  w.source.data = w.data.data() + 1;
  w.source.scale = w.scale.data() + 1;
  return w;
}

// A weight of several groups, packed; frees the backend's copy.
struct PackedWeight {
  PackedWeight(const Backend& b, WeightFormat format, int groups, int64_t out, int64_t in,
               uint64_t seed, DType scale_dtype = DType::kBF16, int32_t group_size = 32,
               int32_t block_size = 128)
      : backend(b) {
    std::vector<LinearSource> pointers;
    for (int g = 0; g < groups; ++g) {
      sources.push_back(
          random_weight(format, out, in, seed + g, scale_dtype, group_size, block_size));
      pointers.push_back(sources.back().source);
    }
    packed = pack_linear(backend, pointers);
  }
  ~PackedWeight() { backend.deallocate(packed.data, packed.bytes); }
  PackedWeight(const PackedWeight&) = delete;
  PackedWeight& operator=(const PackedWeight&) = delete;

  const Backend& backend;
  std::vector<RandomWeight> sources;
  LinearWeight packed;
};

}  // namespace kdt::test
