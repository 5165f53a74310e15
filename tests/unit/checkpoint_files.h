// Writes small checkpoints for the tests of src/checkpoint.
#pragma once

#include <cstring>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/dtype.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"

namespace kdt::checkpoint {

using test::expect_has;
using test::message_of;
using test::TempDir;
using TestJson = nlohmann::ordered_json;

struct TestTensor {
  std::string name;
  std::string dtype;  // as safetensors spells it
  std::vector<int64_t> shape;
  std::string data;
};

template <typename T>
std::string bytes_of(const std::vector<T>& values) {
  std::string out(values.size() * sizeof(T), '\0');
  if (!values.empty()) std::memcpy(out.data(), values.data(), out.size());
  return out;
}

// Zeros of the right size.
inline TestTensor zeros(const std::string& name, const std::string& dtype,
                        const std::vector<int64_t>& shape) {
  const size_t element = dtype == "I64"                        ? 8
                         : dtype == "F32" || dtype == "I32"    ? 4
                         : dtype == "F8_E4M3" || dtype == "U8" ? 1
                                                               : 2;
  size_t bytes = element;
  for (const int64_t size : shape) bytes *= static_cast<size_t>(size);
  return {name, dtype, shape, std::string(bytes, '\0')};
}

// Values as "BF16" (which must hold them exactly) or "F32".
inline TestTensor float_tensor(const std::string& name, const std::string& dtype,
                               const std::vector<int64_t>& shape,
                               const std::vector<float>& values) {
  if (dtype == "F32") return {name, dtype, shape, bytes_of(values)};
  std::vector<uint16_t> codes;
  for (const float value : values) codes.push_back(f32_to_bf16(value));
  return {name, dtype, shape, bytes_of(codes)};
}

inline std::string with_header(const std::string& header, const std::string& payload) {
  const uint64_t length = header.size();
  std::string out(sizeof(length), '\0');
  std::memcpy(out.data(), &length, sizeof(length));
  return out + header + payload;
}

// A .safetensors file; the header is not padded, so payloads start at odd addresses.
inline std::string safetensors(const std::vector<TestTensor>& tensors) {
  TestJson header = {{"__metadata__", {{"format", "pt"}}}};
  std::string payload;
  for (const TestTensor& tensor : tensors) {
    const size_t begin = payload.size();
    payload += tensor.data;
    header[tensor.name] = {{"dtype", tensor.dtype},
                           {"shape", tensor.shape},
                           {"data_offsets", {begin, payload.size()}}};
  }
  std::string text = header.dump();
  if (text.size() % 2 == 0) text += ' ';
  return with_header(text, payload);
}

}  // namespace kdt::checkpoint
