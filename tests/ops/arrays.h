// Arrays in a backend's memory for op tests: filled inputs, poisoned outputs, workspaces.
#pragma once

#include <cstring>
#include <vector>

#include "ops/backend.h"
#include "ops/buffer.h"

namespace kdt::test {

template <typename T>
class Array {
 public:
  Array() = default;
  Array(const Backend& backend, const std::vector<T>& values)
      : backend_(&backend), buffer_(backend, values.size()) {
    backend.copy_in(buffer_.data(), values.data(), values.size() * sizeof(T), {});
  }

  T* data() { return buffer_.data(); }
  size_t size() const { return buffer_.size(); }
  std::vector<T> get() const {
    std::vector<T> values(buffer_.size());
    if (backend_) backend_->copy_out(values.data(), buffer_.data(), values.size() * sizeof(T), {});
    return values;
  }

 private:
  const Backend* backend_ = nullptr;
  Buffer<T> buffer_;
};

// An output that nothing has written yet: every byte 0xEE (floats and doubles of about -1e200 or
// -4e28, integers that no op produces).
template <typename T>
Array<T> poisoned(const Backend& backend, size_t count) {
  std::vector<T> values(count);
  if (count) std::memset(values.data(), 0xEE, count * sizeof(T));
  return Array<T>(backend, values);
}

// Also poisoned: an op must not rely on zeroes in its workspace.
class Scratch {
 public:
  Scratch(const Backend& backend, size_t bytes) : array_(poisoned<char>(backend, bytes)) {}
  Workspace workspace() { return {array_.data(), array_.size()}; }

 private:
  Array<char> array_;
};

}  // namespace kdt::test
