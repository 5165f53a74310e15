// Arrays in a backend's memory for op tests: filled inputs, poisoned outputs, workspaces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/backend.h"
#include "ops/buffer.h"

namespace kdt::test {

// Between guards that no op may touch, checked on reading and at the end.
template <typename T>
class Array {
 public:
  Array() = default;
  Array(const Backend& backend, const std::vector<T>& values)
      : backend_(&backend), count_(values.size()), buffer_(backend, bytes() + 2 * kGuard) {
    std::vector<char> host(buffer_.size(), kGuardByte);
    if (count_) std::memcpy(host.data() + kGuard, values.data(), bytes());
    backend.copy_in(buffer_.data(), host.data(), host.size(), {});
  }
  ~Array() {
    if (buffer_.data()) get();
  }
  Array(Array&&) noexcept = default;
  // Swaps, so that the array that goes checks its own guards.
  Array& operator=(Array&& other) noexcept {
    std::swap(backend_, other.backend_);
    std::swap(count_, other.count_);
    std::swap(buffer_, other.buffer_);
    return *this;
  }

  // Null when empty, as vector::data may be.
  T* data() { return count_ ? reinterpret_cast<T*>(buffer_.data() + kGuard) : nullptr; }
  size_t size() const { return count_; }
  std::vector<T> get() const {
    if (!backend_) return {};
    std::vector<char> host(buffer_.size());
    backend_->copy_out(host.data(), buffer_.data(), host.size(), {});
    backend_->synchronize({});
    const auto is_guard = [](char x) { return x == kGuardByte; };
    EXPECT_TRUE(std::all_of(host.begin(), host.begin() + kGuard, is_guard) &&
                std::all_of(host.end() - kGuard, host.end(), is_guard))
        << "an op wrote outside its arrays";
    std::vector<T> values(count_);
    if (count_) std::memcpy(values.data(), host.data() + kGuard, bytes());
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr char kGuardByte = '\x5A';

  size_t bytes() const { return count_ * sizeof(T); }

  const Backend* backend_ = nullptr;
  size_t count_ = 0;
  Buffer<char> buffer_;
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
