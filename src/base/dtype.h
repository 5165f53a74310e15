// Element types shared by containers, checkpoints and ops, and the exact conversions between the
// narrow floats and fp32. Narrowing rounds to nearest even; NaN stays NaN.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kdt {

enum class DType : uint8_t {
  kF64,
  kF32,
  kF16,
  kBF16,
  kF8E4M3,
  kI64,
  kI32,
  kI16,
  kI8,
  kU64,
  kU32,
  kU16,
  kU8,
  kBool
};
inline constexpr int kDTypeCount = 14;

constexpr size_t dtype_bytes(DType t) {
  constexpr size_t kBytes[kDTypeCount] = {8, 4, 2, 2, 1, 8, 4, 2, 1, 8, 4, 2, 1, 1};
  return kBytes[static_cast<int>(t)];
}

constexpr std::string_view dtype_name(DType t) {
  constexpr std::string_view kNames[kDTypeCount] = {"f64", "f32", "f16", "bf16", "f8e4m3",
                                                    "i64", "i32", "i16", "i8",   "u64",
                                                    "u32", "u16", "u8",  "bool"};
  return kNames[static_cast<int>(t)];
}

inline float bf16_to_f32(uint16_t x) {
  return std::bit_cast<float>(uint32_t{x} << 16);
}

inline uint16_t f32_to_bf16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1)) >> 16);
}

inline float f16_to_f32(uint16_t x) {
  const uint32_t sign = uint32_t{x & 0x8000u} << 16;
  const uint32_t exponent = (x >> 10) & 0x1f, mantissa = x & 0x3ff;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent == 0) {  // zero and subnormals: mantissa * 2^-24, exact in fp32
    const float magnitude = static_cast<float>(mantissa) * 0x1p-24f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

inline uint16_t f32_to_f16(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint16_t sign = static_cast<uint16_t>((bits >> 16) & 0x8000u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7e00;
  if (magnitude >= 0x477ff000u) return sign | 0x7c00;  // rounds to 65536 or more
  if (magnitude < 0x38800000u) {  // subnormal in f16: let the fp32 adder round at 2^-24
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }
  const uint32_t rebias = magnitude - (112u << 23);
  return static_cast<uint16_t>(sign | ((rebias + 0xfffu + ((rebias >> 13) & 1)) >> 13));
}

// OCP FP8 E4M3 ("fn"): bias 7, no infinity, 0x7f and 0xff are NaN, largest 448.
inline float f8e4m3_to_f32(uint8_t x) {
  const uint32_t sign = uint32_t{x & 0x80u} << 24;
  const uint32_t exponent = (x >> 3) & 0xf, mantissa = x & 7;
  if ((x & 0x7f) == 0x7f) return std::bit_cast<float>(sign | 0x7fc00000u);
  if (exponent == 0) {
    const float magnitude = static_cast<float>(mantissa) * 0x1p-9f;
    return std::bit_cast<float>(sign | std::bit_cast<uint32_t>(magnitude));
  }
  return std::bit_cast<float>(sign | ((exponent + 120) << 23) | (mantissa << 20));
}

// Saturates to +-448, as quantizers do; NaN stays NaN.
inline uint8_t f32_to_f8e4m3(float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  const uint8_t sign = static_cast<uint8_t>((bits >> 24) & 0x80u);
  const uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return sign | 0x7f;
  if (magnitude >= 0x43e00000u) return sign | 0x7e;  // 448 and above
  if (magnitude < 0x3c800000u) {                     // below 2^-6: the fp32 adder rounds at 2^-9
    const float shifted = std::bit_cast<float>(magnitude) + 0x1p14f;
    return static_cast<uint8_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x46800000u));
  }
  const uint32_t rebias = magnitude - (120u << 23);
  const uint32_t rounded = (rebias + 0x7ffffu + ((rebias >> 20) & 1)) >> 20;
  return static_cast<uint8_t>(sign | (rounded > 0x7e ? 0x7e : rounded));
}

}  // namespace kdt
