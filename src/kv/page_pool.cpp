#include "kv/page_pool.h"

#include "base/error.h"

namespace kdt::kv {

PagePool::PagePool(int32_t n_pages) : in_use_(n_pages, false) {
  free_.reserve(n_pages);
  for (int32_t page = n_pages - 1; page >= 0; --page) free_.push_back(page);
}

bool PagePool::reserve(int32_t count, std::vector<int32_t>* pages) {
  if (count > n_free()) return false;
  for (int32_t i = 0; i < count; ++i) {
    in_use_[free_.back()] = true;
    pages->push_back(free_.back());
    free_.pop_back();
  }
  return true;
}

void PagePool::release(std::vector<int32_t>* pages) {
  for (const int32_t page : *pages) {
    KDT_CHECK(page >= 0 && page < n_pages() && in_use_[page]);
    in_use_[page] = false;
    free_.push_back(page);
  }
  pages->clear();
}

}  // namespace kdt::kv
