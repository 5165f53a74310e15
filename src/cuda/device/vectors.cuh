// Memory accesses of a chosen width.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace kdt::cuda::device {

// An integer type of 1, 2, 4, 8 or 16 bytes.
template <int kBytes>
struct BytesType;
template <>
struct BytesType<1> {
  using type = uint8_t;
};
template <>
struct BytesType<2> {
  using type = uint16_t;
};
template <>
struct BytesType<4> {
  using type = uint32_t;
};
template <>
struct BytesType<8> {
  using type = uint2;
};
template <>
struct BytesType<16> {
  using type = uint4;
};
template <int kBytes>
using Bytes = typename BytesType<kBytes>::type;

}  // namespace kdt::cuda::device
