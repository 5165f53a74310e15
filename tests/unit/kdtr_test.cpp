#include <gtest/gtest.h>

#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <random>

#include "kdtr/crc32c.h"
#include "kdtr/reader.h"
#include "kdtr/summary.h"
#include "kdtr/writer.h"
#include "tests/errors.h"
#include "tests/temp_dir.h"

namespace kdt::kdtr {
namespace {

using Bytes = std::vector<uint8_t>;

using test::expect_error;
using test::TempDir;

uint32_t crc32c_by_definition(const Bytes& bytes) {
  uint32_t state = 0xffffffff;
  for (const uint8_t byte : bytes) {
    state ^= byte;
    for (int i = 0; i < 8; ++i) state = (state >> 1) ^ (state & 1 ? 0x82f63b78u : 0);
  }
  return ~state;
}

TEST(Crc32c, KnownValues) {
  const std::string digits = "123456789";
  EXPECT_EQ(crc32c(Bytes(digits.begin(), digits.end())), 0xe3069283u);
  EXPECT_EQ(crc32c({}), 0u);
  EXPECT_EQ(crc32c(Bytes(32, 0)), 0x8a9136aau);  // RFC 3720, B.4
}

TEST(Crc32c, EqualsTheDefinitionAndContinues) {
  std::mt19937 random(1);
  for (size_t n = 0; n < 70; ++n) {
    Bytes bytes(n);
    for (uint8_t& b : bytes) b = static_cast<uint8_t>(random());
    EXPECT_EQ(crc32c(bytes), crc32c_by_definition(bytes)) << n;
    const std::span<const uint8_t> all(bytes);
    EXPECT_EQ(crc32c(all.subspan(n / 3), crc32c(all.first(n / 3))), crc32c(bytes)) << n;
  }
}

TEST(Kdtr, RoundTripThroughAFile) {
  const TempDir dir;
  std::vector<float> logits(65);
  std::iota(logits.begin(), logits.end(), -3.5f);
  const std::vector<uint16_t> cache = {0x3f80, 0x7fc0};
  const std::vector<int64_t> scalar = {-7};
  const std::vector<Tensor> tensors = {
      make_tensor<float>("logits", {5, 13}, logits),
      make_tensor<uint16_t>("cache", {2, 1}, cache, DType::kBF16),
      make_tensor<int64_t>("scalar", {}, scalar),
      make_tensor<float>("empty", {3, 0}, {}),
  };
  const Metadata metadata = {{"seed", "7"}, {"what", ""}};
  write_file(dir.file("a.kdtr"), tensors, metadata);
  write_file(dir.file("a.kdtr"), tensors, metadata);  // replaces

  Reader opened(dir.file("a.kdtr"));
  const Reader file = std::move(opened);  // tensors stay valid
  file.verify();
  EXPECT_EQ(file.metadata(), metadata);
  ASSERT_EQ(file.tensors().size(), 4u);
  const Tensor& got = file.at("logits");
  EXPECT_EQ(got.shape, (std::vector<int64_t>{5, 13}));
  EXPECT_EQ(reinterpret_cast<uintptr_t>(got.bytes.data()) % kAlignment, 0u);
  EXPECT_TRUE(std::ranges::equal(got.as<float>(), logits));
  EXPECT_TRUE(std::ranges::equal(file.at("cache").as<uint16_t>(DType::kBF16), cache));
  EXPECT_TRUE(file.at("scalar").shape.empty());
  EXPECT_EQ(file.at("scalar").as<int64_t>()[0], -7);
  EXPECT_TRUE(file.at("empty").as<float>().empty());
  EXPECT_EQ(file.find("logit"), nullptr);
  expect_error(ErrorCode::kBadFile, "a.kdtr: no tensor 'absent'", [&] { file.at("absent"); });
  expect_error(ErrorCode::kBadFile, "'logits' is f32, expected f64", [&] { got.as<double>(); });
  expect_error(ErrorCode::kBadFile, "expected u16", [&] { file.at("cache").as<uint16_t>(); });
}

TEST(Kdtr, OrderOfListingDoesNotMatter) {
  const std::vector<uint8_t> x = {1, 2, 3};
  std::vector<Tensor> tensors = {make_tensor<uint8_t>("a", {3}, x),
                                 make_tensor<uint8_t>("b", {1, 3}, x)};
  const Bytes want = serialize(tensors, {}, "x");
  std::swap(tensors[0], tensors[1]);
  EXPECT_EQ(serialize(tensors, {}, "x"), want);
}

TEST(Kdtr, EveryBitFlipAndCutIsRejected) {
  const std::vector<int16_t> a = {1, -2, 3};
  const std::vector<uint8_t> b = {1};
  const std::vector<Tensor> tensors = {make_tensor<int16_t>("a", {3}, a),
                                       make_tensor<uint8_t>("b", {1}, b, DType::kBool)};
  const Bytes good = serialize(tensors, {{"k", "v"}}, "good");
  Reader(good, "good").verify();
  for (size_t bit = 0; bit < 8 * good.size(); ++bit) {
    Bytes bad = good;
    bad[bit / 8] ^= static_cast<uint8_t>(1 << (bit % 8));
    EXPECT_THROW(Reader(bad, "bad").verify(), Error) << "bit " << bit;
  }
  for (size_t n = 0; n < good.size(); ++n) {
    const Bytes cut(good.begin(), good.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_THROW(Reader(cut, "cut"), Error) << n << " bytes";
  }
}

TEST(Kdtr, MemoryMustBeAligned) {
  const Bytes good = serialize({}, {}, "x");
  Bytes shifted(good.size() + 1);
  std::memcpy(shifted.data() + 1, good.data(), good.size());
  expect_error(ErrorCode::kInvalidArgument, "aligned",
               [&] { Reader(std::span(shifted).subspan(1), "x"); });
}

TEST(Kdtr, WriterRefusesAndKeepsTheOldFile) {
  const TempDir dir;
  const std::string path = dir.file("out.kdtr");
  const std::vector<uint8_t> x = {0, 1, 2};
  const auto expect_refused = [&](std::vector<Tensor> tensors, const Metadata& metadata,
                                  const std::string& rule) {
    std::ofstream(path) << "old";
    expect_error(ErrorCode::kBadFile, rule, [&] { write_file(path, tensors, metadata); });
    EXPECT_EQ(read_text_file(path, 100), "old");
    EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
  };
  const auto named = [&](std::string name) { return make_tensor<uint8_t>(name, {3}, x); };
  const auto shaped = [&](std::vector<int64_t> shape) {
    return make_tensor<uint8_t>("a", shape, x);
  };
  expect_refused({named("")}, {}, "[limits]");
  expect_refused({named(std::string(256, 'n'))}, {}, "[limits]");
  expect_refused({named("\xff")}, {}, "'\\xff' is not UTF-8 or has control characters [text]");
  expect_refused({named("a\nb")}, {}, "'a\\x0ab'");
  expect_refused({named("a"), named("b"), named("a")}, {}, "'a' is given twice [order]");
  expect_refused({shaped({4})}, {}, "shape [4] of u8 has 4 bytes, 3 given [shape]");
  expect_refused({shaped({-3})}, {}, "[shape]");
  expect_refused({shaped({int64_t{1} << 49, 0})}, {}, "[shape]");
  expect_refused({shaped({1, 1, 1, 1, 1, 1, 1, 1, 3})}, {}, "[rank]");
  expect_refused({make_tensor<uint8_t>("a", {3}, x, DType::kBool)}, {}, "[bool]");
  expect_refused({}, {{"k", std::string(kMaxValueBytes + 1, 'v')}}, "[limits]");
  expect_refused({}, {{"k", "\xc3"}}, "[text]");
  expect_refused({}, {{"", "v"}}, "[limits]");
  std::vector<Tensor> many(kMaxTensors + 1, named("a"));
  for (size_t i = 0; i < many.size(); ++i) many[i].name = std::to_string(i);
  expect_refused(many, {}, "65537 tensors");
}

TEST(Kdtr, MissingDirectoryIsAnIoError) {
  expect_error(ErrorCode::kIo, "/nonexistent/x.kdtr",
               [] { write_file("/nonexistent/x.kdtr", {}); });
  expect_error(ErrorCode::kIo, "/nonexistent/x.kdtr", [] { Reader("/nonexistent/x.kdtr"); });
}

TEST(Kdtr, IsKdtrLooksAtTheMagic) {
  const TempDir dir;
  write_file(dir.file("a"), {});
  std::ofstream(dir.file("text")) << "KDTR but not really";
  std::ofstream(dir.file("short")) << "KDTR";
  EXPECT_TRUE(is_kdtr(dir.file("a")));
  for (const char* name : {"text", "short", "absent", "."}) EXPECT_FALSE(is_kdtr(dir.file(name)));
}

const TensorSummary& find(const Summary& summary, const std::string& name) {
  for (const TensorSummary& t : summary.tensors)
    if (t.name == name) return t;
  throw std::out_of_range(name);
}

TEST(KdtrSummary, StatisticsOfEveryDtype) {
  const Reader file(KDT_SOURCE_DIR "/tests/golden/kdtr_corpus/good_every_dtype.kdtr");
  const Summary summary = summarize(file, /*verify=*/true);
  EXPECT_TRUE(summary.sound);
  EXPECT_EQ(summary.payload_bytes, 24u + 12 + 6 + 6 + 3 + 2 * (16 + 8 + 4 + 2) + 2);
  EXPECT_EQ(find(summary, "f64").max, INFINITY);
  EXPECT_EQ(find(summary, "f64").mean, INFINITY);
  const TensorSummary& f32 = find(summary, "f32");
  EXPECT_EQ(f32.n_nan, 1u);
  EXPECT_EQ(f32.min, -2.25L);
  EXPECT_EQ(f32.max, 1.5L);
  EXPECT_EQ(f32.mean, -0.375L);
  for (const char* name : {"f16", "bf16", "f8e4m3"}) {
    EXPECT_EQ(find(summary, name).min, -2.0L) << name;
    EXPECT_EQ(find(summary, name).max, 1.0L) << name;
    EXPECT_EQ(find(summary, name).mean, -0.5L) << name;
    EXPECT_EQ(find(summary, name).n_nan, 1u) << name;
    EXPECT_EQ(find(summary, name).n_elements, 3u) << name;
  }
  EXPECT_EQ(find(summary, "i8").min, -128.0L);
  EXPECT_EQ(find(summary, "i16").max, 32767.0L);
  EXPECT_EQ(find(summary, "i32").mean, -0.5L);
  EXPECT_EQ(find(summary, "u16").max, 65535.0L);
  EXPECT_EQ(find(summary, "u32").mean, 2147483647.5L);
  EXPECT_EQ(find(summary, "bool").mean, 0.5L);
  const std::string text = to_text(summary);
  for (const char* exact : {"-9223372036854775808", "9223372036854775807", "18446744073709551615"})
    EXPECT_NE(text.find(exact), std::string::npos) << text;
}

TEST(KdtrSummary, TextOfAWholeFile) {
  const std::vector<float> x = {1, NAN, 4};
  const std::vector<float> nan = {NAN};
  const std::vector<Tensor> tensors = {make_tensor<float>("x", {3, 1}, x),
                                       make_tensor<float>("none", {0}, {}),
                                       make_tensor<float>("nan", {}, nan)};
  const Bytes bytes = serialize(tensors, {{"note", "a\x1b[1m"}}, "s.kdtr");
  EXPECT_EQ(to_text(summarize(Reader(bytes, "s.kdtr"), false)),
            "s.kdtr: KDTR version 1, 3 tensors, 16 payload bytes\n"
            "  note = a\\x1b[1m\n"
            "tensor  dtype  shape   min  max  mean  nan\n"
            "nan     f32    []        -    -     -    1\n"
            "none    f32    [0]       -    -     -    0\n"
            "x       f32    [3, 1]    1    4   2.5    1\n");
}

TEST(KdtrSummary, VerifyReportsDamageWithoutThrowing) {
  const std::vector<uint8_t> x = {0, 1, 1};
  const std::vector<Tensor> tensors = {make_tensor<uint8_t>("a", {3}, x),
                                       make_tensor<uint8_t>("b", {3}, x)};
  Bytes bytes = serialize(tensors, {}, "s.kdtr");
  bytes[bytes.size() - 64] ^= 2;
  const Reader file(bytes, "s.kdtr");
  EXPECT_TRUE(summarize(file, /*verify=*/false).sound);
  const Summary summary = summarize(file, /*verify=*/true);
  EXPECT_FALSE(summary.sound);
  EXPECT_FALSE(find(summary, "a").fault);
  EXPECT_TRUE(find(summary, "b").fault);
  const std::string text = to_text(summary);
  EXPECT_NE(text.find("BAD\ntensor 'b' is damaged: CRC32C"), std::string::npos) << text;
}

}  // namespace
}  // namespace kdt::kdtr
