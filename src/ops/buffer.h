// Backend memory that frees itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "ops/backend.h"

namespace kdt {

// `count` elements of T in a backend's memory, zero-filled. Movable, not copyable.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(const Backend& backend, size_t count) : backend_(&backend), count_(count) {
    if (count) data_ = static_cast<T*>(backend.allocate(count * sizeof(T)));
  }
  ~Buffer() {
    if (data_) backend_->deallocate(data_, count_ * sizeof(T));
  }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;

  T* data() { return data_; }
  const T* data() const { return data_; }
  size_t size() const { return count_; }

 private:
  void swap(Buffer& other) {
    std::swap(backend_, other.backend_);
    std::swap(data_, other.data_);
    std::swap(count_, other.count_);
  }

  const Backend* backend_ = nullptr;
  T* data_ = nullptr;
  size_t count_ = 0;
};

}  // namespace kdt
