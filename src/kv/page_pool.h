// The pages of a paged cache as numbers: who owns which is decided here, what they hold is not.
#pragma once

#include <cstdint>
#include <vector>

namespace kdt::kv {

// Free list over pages 0 .. n_pages - 1. Not thread-safe: the engine thread owns it.
class PagePool {
 public:
  explicit PagePool(int32_t n_pages);

  int32_t n_pages() const { return static_cast<int32_t>(in_use_.size()); }
  int32_t n_free() const { return static_cast<int32_t>(free_.size()); }

  // Takes `count` pages, or none: false when fewer are free.
  bool reserve(int32_t count, std::vector<int32_t>* pages);

  // Gives pages back and clears the list. A page that is not in use is an internal error.
  void release(std::vector<int32_t>* pages);

 private:
  std::vector<int32_t> free_;
  std::vector<bool> in_use_;
};

}  // namespace kdt::kv
