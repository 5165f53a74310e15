#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <limits>

#include "base/atomic_file.h"
#include "base/dtype.h"
#include "base/error.h"
#include "base/mapped_file.h"

namespace kdt {
namespace {

// Nearest representable value by search over all codes, ties to the even code: the definition.
template <typename Decode>
uint32_t nearest_code(float x, uint32_t n_codes, Decode decode) {
  uint32_t best = 0;
  double best_distance = std::numeric_limits<double>::infinity();
  for (uint32_t code = 0; code < n_codes; ++code) {
    const double value = decode(code);
    if (std::isnan(value) || std::isinf(value)) continue;
    const double distance = std::fabs(value - static_cast<double>(x));
    const bool sign_matches = std::signbit(value) == std::signbit(x);
    if (distance < best_distance || (distance == best_distance && sign_matches && code % 2 == 0)) {
      best = code;
      best_distance = distance;
    }
  }
  return best;
}

TEST(DType, F8RoundsToNearestEven) {
  for (int i = -4000; i <= 4000; ++i) {
    const float x = static_cast<float>(i) * 0.00037f * static_cast<float>(1 << (std::abs(i) % 9));
    const uint32_t want = nearest_code(x, 256, [](uint32_t c) { return f8e4m3_to_f32(c); });
    EXPECT_EQ(f8e4m3_to_f32(f32_to_f8e4m3(x)), f8e4m3_to_f32(want)) << x;
  }
  EXPECT_EQ(f8e4m3_to_f32(f32_to_f8e4m3(1e9f)), 448.0f);
  EXPECT_TRUE(std::isnan(f8e4m3_to_f32(f32_to_f8e4m3(NAN))));
}

TEST(DType, NarrowFloatsRoundTripEveryCode) {
  for (uint32_t code = 0; code < 65536; ++code) {
    const auto c = static_cast<uint16_t>(code);
    if (!std::isnan(bf16_to_f32(c))) {
      EXPECT_EQ(f32_to_bf16(bf16_to_f32(c)), c);
    }
    if (!std::isnan(f16_to_f32(c))) {
      EXPECT_EQ(f32_to_f16(f16_to_f32(c)), c);
    }
  }
  for (uint32_t code = 0; code < 256; ++code) {
    const auto c = static_cast<uint8_t>(code);
    if (!std::isnan(f8e4m3_to_f32(c))) {
      EXPECT_EQ(f32_to_f8e4m3(f8e4m3_to_f32(c)), c);
    }
  }
}

TEST(DType, TiesGoToEven) {
  EXPECT_EQ(f32_to_bf16(1.0f + 0x1p-8f), f32_to_bf16(1.0f));
  EXPECT_EQ(bf16_to_f32(f32_to_bf16(1.0f + 0x3p-8f)), 1.0f + 0x1p-6f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(1.0f + 0x1p-11f)), 1.0f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(0x1p-25f)), 0.0f);
  EXPECT_EQ(f16_to_f32(f32_to_f16(0x3p-25f)), 0x1p-23f);
  EXPECT_TRUE(std::isinf(f16_to_f32(f32_to_f16(65520.0f))));
  EXPECT_EQ(f16_to_f32(f32_to_f16(65519.0f)), 65504.0f);
}

TEST(Error, CheckPrintsValues) {
  try {
    KDT_CHECK_EQ(1 + 1, 3);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kInternal);
    EXPECT_NE(std::string(e.what()).find("2 vs 3"), std::string::npos);
  }
}

TEST(AtomicFile, OldContentSurvivesWithoutCommit) {
  const std::string path = testing::TempDir() + "/atomic_file_test";
  {
    AtomicFile file(path);
    file.write("old", 3);
    file.commit();
  }
  {
    AtomicFile file(path);
    file.write("broken", 6);
  }
  EXPECT_EQ(read_text_file(path, 100), "old");
  std::remove(path.c_str());
}

TEST(MappedFile, NamesThePathInErrors) {
  try {
    MappedFile file("/nonexistent/file");
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("/nonexistent/file"), std::string::npos);
  }
  EXPECT_THROW(MappedFile("/dev/null"), Error);
}

}  // namespace
}  // namespace kdt
