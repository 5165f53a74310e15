// Reads the golden bundles of tests/golden (README.md there states the conventions).
#pragma once

#include <string>
#include <vector>

#include "kdtr/reader.h"

namespace kdt::test {

// One bundle: `<op>.<case>.kdtr`.
class Golden {
 public:
  explicit Golden(const std::string& path) : reader_(path) {}

  std::string label() const { return reader_.path().substr(reader_.path().rfind('/') + 1); }
  bool has(const std::string& name) const;
  std::vector<int64_t> shape(const std::string& name) const;
  DType dtype(const std::string& name) const;

  // A tensor of exactly this element type.
  template <typename T>
  std::vector<T> get(const std::string& name) const {
    const auto values = reader_.at(name).as<T>();
    return {values.begin(), values.end()};
  }
  template <typename T>
  T scalar(const std::string& name) const {
    return get<T>(name).at(0);
  }
  bool flag(const std::string& name) const {
    return reader_.at(name).as<uint8_t>(DType::kBool)[0] != 0;
  }
  // The elements as they lie in the file.
  std::vector<uint8_t> bytes(const std::string& name) const {
    const auto raw = reader_.at(name).bytes;
    return {raw.begin(), raw.end()};
  }
  // f32, bf16 or f16 as fp32, also where the bundle holds a seed instead of the values.
  std::vector<float> floats(const std::string& name) const;
  // A metadata value, or empty.
  std::string metadata(const std::string& key) const;

 private:
  // "bf16 seed=7 scale=0.05 shape=3,64,576", or empty.
  std::string seeded(const std::string& name) const { return metadata("seeded." + name); }

  kdtr::Reader reader_;
};

// All bundles of an op, by name; throws when there are none.
std::vector<Golden> golden_bundles(const std::string& op);

}  // namespace kdt::test
