// Arrays in a backend's memory for op tests: filled inputs, poisoned outputs, workspaces.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "ops/backend.h"
#include "ops/buffer.h"

namespace kdt::test {

// Where memory that nobody has written comes from: a backend that does not fill what it allocates,
// for tools that follow which memory was written. Null: from the op's own backend.
inline const Backend* raw_memory = nullptr;

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
  // Elements that nothing has written, not even the allocator where raw_memory is set.
  static Array unwritten(const Backend& backend, size_t count) {
    Array array;
    array.backend_ = &backend;
    array.count_ = count;
    const bool raw = raw_memory && &backend != &cpu_backend();
    array.buffer_ = Buffer<char>(raw ? *raw_memory : backend, array.bytes() + 2 * kGuard);
    const std::vector<char> guard(kGuard, kGuardByte);
    for (const size_t at : {size_t{0}, kGuard + array.bytes()})
      backend.copy_in(array.buffer_.data() + at, guard.data(), kGuard, {});
    return array;
  }
  ~Array() {
    if (buffer_.data()) expect_guards();
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
    expect_guards();
    std::vector<T> values(count_);
    if (count_) backend_->copy_out(values.data(), buffer_.data() + kGuard, bytes(), {});
    backend_->synchronize({});
    return values;
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr char kGuardByte = '\x5A';

  size_t bytes() const { return count_ * sizeof(T); }
  void expect_guards() const {
    std::vector<char> guards(2 * kGuard);
    backend_->copy_out(guards.data(), buffer_.data(), kGuard, {});
    backend_->copy_out(guards.data() + kGuard, buffer_.data() + kGuard + bytes(), kGuard, {});
    backend_->synchronize({});
    EXPECT_TRUE(std::all_of(guards.begin(), guards.end(), [](char x) { return x == kGuardByte; }))
        << "an op wrote outside its arrays";
  }

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

// Poisoned, or unwritten where raw_memory is set: an op must not rely on zeroes in its workspace.
inline Array<char> workspace_array(const Backend& backend, size_t bytes) {
  return raw_memory ? Array<char>::unwritten(backend, bytes) : poisoned<char>(backend, bytes);
}

class Scratch {
 public:
  Scratch(const Backend& backend, size_t bytes) : array_(workspace_array(backend, bytes)) {}
  Workspace workspace() { return {array_.data(), array_.size()}; }

 private:
  Array<char> array_;
};

}  // namespace kdt::test
