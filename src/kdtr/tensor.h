// A named tensor as KDTR holds it: what a reader gives and a writer takes. It owns no payload.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/dtype.h"
#include "base/error.h"

namespace kdt::kdtr {

// The dtype that an element type stands for by itself. Narrow floats and bools travel as their
// codes (uint16_t, uint8_t) and are named explicitly.
template <typename T>
constexpr DType dtype_of() {
  static_assert(std::is_arithmetic_v<T> && !std::is_same_v<T, bool>);
  if constexpr (std::is_same_v<T, double>) return DType::kF64;
  if constexpr (std::is_same_v<T, float>) return DType::kF32;
  if constexpr (std::is_same_v<T, int64_t>) return DType::kI64;
  if constexpr (std::is_same_v<T, int32_t>) return DType::kI32;
  if constexpr (std::is_same_v<T, int16_t>) return DType::kI16;
  if constexpr (std::is_same_v<T, int8_t>) return DType::kI8;
  if constexpr (std::is_same_v<T, uint64_t>) return DType::kU64;
  if constexpr (std::is_same_v<T, uint32_t>) return DType::kU32;
  if constexpr (std::is_same_v<T, uint16_t>) return DType::kU16;
  if constexpr (std::is_same_v<T, uint8_t>) return DType::kU8;
}

// True where T is the element type of `dtype` or of its codes.
template <typename T>
constexpr bool holds(DType dtype) {
  const bool is_code = dtype == DType::kF16 || dtype == DType::kBF16 ? dtype_of<T>() == DType::kU16
                       : dtype == DType::kF8E4M3 || dtype == DType::kBool
                           ? dtype_of<T>() == DType::kU8
                           : false;
  return is_code || dtype_of<T>() == dtype;
}

struct Tensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;      // outermost first; empty for a scalar
  std::span<const uint8_t> bytes;  // row-major, aligned for the element; borrowed

  // The elements. `expected` must be the tensor's dtype; name it for codes:
  // t.as<float>(), t.as<uint16_t>(DType::kBF16), t.as<uint8_t>(DType::kBool).
  // Throws kBadFile naming the tensor and both dtypes.
  template <typename T>
  std::span<const T> as(DType expected = dtype_of<T>()) const {
    KDT_CHECK(holds<T>(expected));
    if (dtype != expected)
      throw_error(ErrorCode::kBadFile, "tensor '{}' is {}, expected {}", name, dtype_name(dtype),
                  dtype_name(expected));
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
};

// A tensor over the caller's elements, which must outlive it.
template <typename T>
Tensor make_tensor(std::string name, std::vector<int64_t> shape, std::span<const T> values,
                   DType dtype = dtype_of<T>()) {
  KDT_CHECK(holds<T>(dtype));
  return {std::move(name),
          dtype,
          std::move(shape),
          {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()}};
}

}  // namespace kdt::kdtr
