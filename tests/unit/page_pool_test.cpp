#include "kv/page_pool.h"

#include <gtest/gtest.h>

#include <set>

#include "base/error.h"

namespace kdt::kv {
namespace {

TEST(PagePool, ReservesAllOrNothing) {
  PagePool pool(4);
  std::vector<int32_t> a, b;
  EXPECT_TRUE(pool.reserve(3, &a));
  EXPECT_FALSE(pool.reserve(2, &b));
  EXPECT_TRUE(b.empty());
  EXPECT_EQ(pool.n_free(), 1);
  EXPECT_TRUE(pool.reserve(1, &b));
  std::set<int32_t> all(a.begin(), a.end());
  all.insert(b.begin(), b.end());
  EXPECT_EQ(all, (std::set<int32_t>{0, 1, 2, 3}));
  pool.release(&a);
  EXPECT_TRUE(a.empty());
  EXPECT_EQ(pool.n_free(), 3);
}

TEST(PagePool, RefusesDoubleRelease) {
  PagePool pool(2);
  std::vector<int32_t> pages;
  ASSERT_TRUE(pool.reserve(1, &pages));
  std::vector<int32_t> copy = pages;
  pool.release(&pages);
  EXPECT_THROW(pool.release(&copy), Error);
}

}  // namespace
}  // namespace kdt::kv
