// Backend memory that frees itself.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

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

// Small arrays that the host fills or reads: a host vector and its copy in backend memory.
template <typename T>
class Mirror {
 public:
  Mirror() = default;
  Mirror(const Backend& backend, size_t count)
      : backend_(&backend), host_(count), device_(backend, count) {}

  T& operator[](size_t i) { return host_[i]; }
  const T& operator[](size_t i) const { return host_[i]; }
  T* host() { return host_.data(); }
  T* device() { return device_.data(); }
  size_t size() const { return host_.size(); }

  // Host to device, and back, of the first `count` elements.
  void upload(size_t count, Stream stream = {}) {
    backend_->copy_in(device_.data(), host_.data(), count * sizeof(T), stream);
  }
  void download(size_t count, Stream stream = {}) {
    backend_->copy_out(host_.data(), device_.data(), count * sizeof(T), stream);
  }

 private:
  const Backend* backend_ = nullptr;
  std::vector<T> host_;
  Buffer<T> device_;
};

}  // namespace kdt
