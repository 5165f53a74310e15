#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>

#include "ops/backend.h"
#include "tests/errors.h"

namespace kdt {
namespace {

TEST(CpuMemory, IsAlignedAndZeroFilled) {
  const Backend& cpu = cpu_backend();
  for (size_t bytes : {1, 63, 4097, 1 << 20}) {
    auto* data = static_cast<uint8_t*>(cpu.allocate(bytes));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u) << bytes;
    EXPECT_TRUE(std::all_of(data, data + bytes, [](uint8_t b) { return b == 0; })) << bytes;
    std::fill(data, data + bytes, uint8_t{0xee});
    cpu.deallocate(data, bytes);
  }
}

TEST(CpuMemory, NothingIsNull) {
  EXPECT_EQ(cpu_backend().allocate(0), nullptr);
  cpu_backend().deallocate(nullptr, 0);
  cpu_backend().copy(nullptr, nullptr, 0, {});
}

TEST(CpuMemory, TooMuchIsRefusedWithItsSize) {
  for (size_t bytes : {size_t{1} << 60, SIZE_MAX}) {
    test::expect_error(ErrorCode::kOutOfResources, std::to_string(bytes) + " bytes",
                       [&] { cpu_backend().allocate(bytes); });
  }
}

TEST(CpuMemory, CopiesMayOverlap) {
  char text[] = "abcdef";
  cpu_backend().copy(text + 1, text, 4, {});
  EXPECT_STREQ(text, "aabcdf");
}

}  // namespace
}  // namespace kdt
