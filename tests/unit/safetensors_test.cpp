#include "checkpoint/safetensors.h"

#include <gtest/gtest.h>

#include "checkpoint_files.h"

namespace kdt::checkpoint {
namespace {

// Parses from a buffer of exactly the size, so that address checkers see every overrun.
std::vector<TensorView> parse(const std::string& file, std::vector<uint8_t>& storage) {
  storage.assign(file.begin(), file.end());
  storage.shrink_to_fit();
  return parse_safetensors(storage, "model.safetensors");
}

std::string parse_error(const std::string& file) {
  std::vector<uint8_t> storage;
  return message_of([&] { parse(file, storage); });
}

std::string sample_file() {
  return safetensors({{"b", "BF16", {2, 3}, std::string("abcdefghijkl")},
                      {"a", "F32", {}, std::string("wxyz")},
                      {"empty", "I64", {0, 4}, ""},
                      {"bytes", "U8", {3}, std::string("123")}});
}

TEST(Safetensors, ReadsTensorsInPayloadOrder) {
  std::vector<uint8_t> storage;
  const std::vector<TensorView> tensors = parse(sample_file(), storage);
  ASSERT_EQ(tensors.size(), 4u);
  EXPECT_EQ(tensors[0].name, "b");
  EXPECT_EQ(describe(tensors[0]), "bf16 [2, 3]");
  EXPECT_EQ(tensors[0].numel(), 6);
  EXPECT_EQ(std::string(tensors[0].data.begin(), tensors[0].data.end()), "abcdefghijkl");
  EXPECT_EQ(describe(tensors[1]), "f32 []");
  EXPECT_EQ(tensors[1].numel(), 1);
  EXPECT_EQ(tensors[2].numel(), 0);
  EXPECT_EQ(std::string(tensors[3].data.begin(), tensors[3].data.end()), "123");
  EXPECT_EQ((tensors[0].data.data() - storage.data()) % 2, 1) << "the sample must be unaligned";
}

TEST(Safetensors, AcceptsNoTensorsAndPaddedHeaders) {
  std::vector<uint8_t> storage;
  EXPECT_TRUE(parse(with_header("{}", ""), storage).empty());
  EXPECT_TRUE(parse(with_header("{}      ", ""), storage).empty());
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string file = sample_file();
  for (size_t n = 0; n < file.size(); ++n)
    expect_has(parse_error(file.substr(0, n)), "model.safetensors: ");
}

TEST(Safetensors, EveryChangedHeaderByteIsAnErrorOrStaysInside) {
  const std::string file = sample_file();
  const size_t header_end = file.size() - (12 + 4 + 3);
  std::vector<uint8_t> storage;
  int n_rejected = 0;
  for (size_t i = 0; i < header_end; ++i) {
    for (const int flip : {1, 2, 4, 16, 128}) {
      std::string changed = file;
      changed[i] = static_cast<char>(changed[i] ^ flip);
      try {
        for (const TensorView& tensor : parse(changed, storage)) {
          ASSERT_GE(tensor.data.data(), storage.data());
          ASSERT_LE(tensor.data.data() + tensor.data.size(), storage.data() + storage.size());
        }
      } catch (const Error& error) {
        ASSERT_NE(error.code(), ErrorCode::kInternal) << error.what();
        ++n_rejected;
      }
    }
  }
  EXPECT_GT(n_rejected, 500);
}

const std::string kDeep = "{\"a\":" + std::string(200, '[');

struct BadHeader {
  const char* header;
  const char* expected;  // part of the message
};
class BadHeaders : public testing::TestWithParam<BadHeader> {};

TEST_P(BadHeaders, AreRefusedWithTheReason) {
  expect_has(parse_error(with_header(GetParam().header, "12345678")), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadHeaders,
    testing::Values(
        BadHeader{"", "not valid JSON"}, BadHeader{"[]", "a JSON object was expected, found array"},
        BadHeader{"{} x", "not valid JSON"}, BadHeader{R"({"a":1})", "tensor a: is 1"},
        BadHeader{"{\"a\xff\":1}", "not valid JSON"},
        BadHeader{R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "tensor a: has no dtype"},
        BadHeader{R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "tensor a: has no shape"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2]}})", "tensor a: has no data_offsets"},
        BadHeader{R"({"a":{"dtype":"F33","shape":[2],"data_offsets":[0,8]}})", "dtype is \"F33\""},
        BadHeader{R"({"a":{"dtype":7,"shape":[2],"data_offsets":[0,8]}})", "dtype is 7"},
        BadHeader{R"({"a":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", "shape is 2"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "shape is [-2]"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2.0],"data_offsets":[0,8]}})", "shape is [2.0]"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[1,1,1,1,1,1,1,1,8],"data_offsets":[0,8]}})",
                  "at most 8 sizes"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})",
                  "sizes of 0 or more"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[4611686018427387906],"data_offsets":[0,8]}})",
                  "overflows"},
        BadHeader{R"({"a":{"dtype":"U8","shape":[4294967296,4294967297],"data_offsets":[0,8]}})",
                  "overflows"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})",
                  "f32 [3] needs 12 bytes"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,8]}})",
                  "f32 [1] needs 4 bytes, data_offsets [0,8] give 8"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,9]}})",
                  "within the 8 payload bytes"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "expected [begin"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "expected [begin"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", "sizes of 0"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})",
                  "8 payload bytes, but the tensors use only 4"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})", "a hole"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("b":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}})",
                  "tensor b: payload begins at byte 4, expected 8 (it overlaps"},
        BadHeader{R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},)"
                  R"("a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})",
                  "duplicate key \"a\""},
        BadHeader{R"({"a":{"dtype":"F32","dtype":"I32","shape":[2],"data_offsets":[0,8]}})",
                  "duplicate key \"dtype\""},
        BadHeader{kDeep.c_str(), "nested deeper"}));

TEST(Safetensors, RefusesAbsurdHeaderLengthsWithoutReading) {
  expect_has(parse_error(std::string(8, '\xff') + "{}"), "at most 100000000");
  std::string file = with_header("{}", "");
  file[0] = 3;
  expect_has(parse_error(file), "truncated: header of 3 bytes");
}

TEST(Safetensors, LongAndControlCharactersNeverReachTheMessage) {
  const std::string name = std::string(5000, 'x');
  const std::string message = parse_error(with_header("{\"\\n\\u001b" + name + "\":1}", ""));
  EXPECT_LT(message.size(), 250u);
  expect_has(message, "tensor ??xxx");
}

TEST(Safetensors, MappedFileViewsNameTheirFile) {
  const TempDir dir;
  const std::string path = dir.write("m.safetensors", sample_file());
  SafetensorsFile first(path);
  const uint8_t* data = first.tensors()[0].data.data();
  const SafetensorsFile moved = std::move(first);
  EXPECT_EQ(moved.tensors()[0].data.data(), data);
  EXPECT_EQ(moved.tensors()[0].file->path(), path);
  expect_has(message_of([&] { SafetensorsFile(dir.path() + "/absent"); }), "absent: cannot open");
}

}  // namespace
}  // namespace kdt::checkpoint
