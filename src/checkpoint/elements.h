// Reading single elements of the float types at any byte address. Internal to src/checkpoint.
#pragma once

#include <cstdint>
#include <cstring>

#include "base/dtype.h"
#include "base/error.h"

namespace kdt::checkpoint {

template <typename T>
T load_unaligned(const uint8_t* data, int64_t index) {
  T value;
  std::memcpy(&value, data + index * static_cast<int64_t>(sizeof(T)), sizeof(T));
  return value;
}

struct F32Element {
  static float at(const uint8_t* data, int64_t i) { return load_unaligned<float>(data, i); }
};
struct BF16Element {
  static float at(const uint8_t* data, int64_t i) {
    return bf16_to_f32(load_unaligned<uint16_t>(data, i));
  }
};
struct F16Element {
  static float at(const uint8_t* data, int64_t i) {
    return f16_to_f32(load_unaligned<uint16_t>(data, i));
  }
};

// Calls body with the element reader of `dtype`, once, outside the loop over elements.
template <typename Body>
void with_float_type(DType dtype, Body body) {
  switch (dtype) {
    case DType::kF32:
      return body(F32Element{});
    case DType::kBF16:
      return body(BF16Element{});
    case DType::kF16:
      return body(F16Element{});
    default:
      throw_error(ErrorCode::kInternal, "{} is not a plain float type", dtype_name(dtype));
  }
}

}  // namespace kdt::checkpoint
