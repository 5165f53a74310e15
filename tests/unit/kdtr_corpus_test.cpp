// Judges the shared KDTR corpus with the C++ reader; python/tests/test_kdtr_corpus.py does with the
// numpy one. Both writers also have to give every good file's very bytes.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <sstream>

#include "kdtr/reader.h"
#include "kdtr/writer.h"

namespace kdt::kdtr {
namespace {

const std::string kCorpus = KDT_SOURCE_DIR "/tests/golden/kdtr_corpus/";

struct Case {
  std::string file, verdict, rule;
};

std::vector<Case> manifest() {
  std::ifstream in(kCorpus + "manifest.tsv");
  std::vector<Case> cases;
  std::string line;
  std::getline(in, line);
  while (std::getline(in, line)) {
    std::istringstream fields(line);
    Case c;
    std::getline(fields, c.file, '\t');
    std::getline(fields, c.verdict, '\t');
    std::getline(fields, c.rule, '\t');
    cases.push_back(c);
  }
  return cases;
}

// The rule by which opening or verifying rejects, "-" if it does not.
template <typename Action>
std::string broken_rule(const std::string& file, Action action) {
  try {
    action();
    return "-";
  } catch (const Error& e) {
    const std::string message = e.what();
    EXPECT_EQ(e.code(), ErrorCode::kBadFile) << message;
    EXPECT_NE(message.find(file), std::string::npos) << message;
    return message.substr(message.rfind('[') + 1, message.size() - message.rfind('[') - 2);
  }
}

std::vector<uint8_t> read_bytes(const std::string& path) {
  const MappedFile file(path);
  return {file.bytes().begin(), file.bytes().end()};
}

TEST(KdtrCorpus, EveryVerdict) {
  const std::vector<Case> cases = manifest();
  ASSERT_GE(cases.size(), 100u);
  for (const Case& c : cases) {
    const std::string path = kCorpus + c.file;
    const std::string at_open = broken_rule(c.file, [&] { Reader reader(path); });
    EXPECT_EQ(at_open, c.verdict == "open" ? c.rule : "-") << c.file;
    const std::string at_verify = broken_rule(c.file, [&] { Reader(path).verify(); });
    EXPECT_EQ(at_verify, c.rule) << c.file;
  }
}

TEST(KdtrCorpus, WritingAGoodFileAgainGivesItsBytes) {
  int n_good = 0;
  for (const Case& c : manifest()) {
    if (c.verdict != "accept") continue;
    const Reader reader(kCorpus + c.file);
    EXPECT_EQ(serialize(reader.tensors(), reader.metadata(), c.file), read_bytes(reader.path()))
        << c.file;
    ++n_good;
  }
  EXPECT_GE(n_good, 15);
}

template <typename T>
std::vector<T> values(const Reader& file, const char* name, DType dtype = dtype_of<T>()) {
  const auto span = file.at(name).as<T>(dtype);
  return {span.begin(), span.end()};
}

template <typename T>
void expect_limits(const Reader& file, const char* name) {
  using Limits = std::numeric_limits<T>;
  EXPECT_EQ(values<T>(file, name), (std::vector<T>{Limits::min(), Limits::max()})) << name;
}

TEST(KdtrCorpus, ValuesOfEveryDtype) {
  const Reader file(kCorpus + "good_every_dtype.kdtr");
  EXPECT_EQ(file.metadata(), (Metadata{{"seed", "0"}}));
  EXPECT_EQ(values<double>(file, "f64"), (std::vector<double>{1.5, 0.0, INFINITY}));
  EXPECT_TRUE(std::signbit(values<double>(file, "f64")[1]));
  const std::vector<float> f32 = values<float>(file, "f32");
  ASSERT_EQ(f32.size(), 3u);
  EXPECT_EQ(f32[1], -2.25f);
  EXPECT_TRUE(std::isnan(f32[2]));
  using Codes = std::vector<uint16_t>;
  EXPECT_EQ(values<uint16_t>(file, "f16", DType::kF16), (Codes{0x3c00, 0xc000, 0x7e00}));
  EXPECT_EQ(values<uint16_t>(file, "bf16", DType::kBF16), (Codes{0x3f80, 0xc000, 0x7fc0}));
  using Bytes = std::vector<uint8_t>;
  EXPECT_EQ(values<uint8_t>(file, "f8e4m3", DType::kF8E4M3), (Bytes{0x38, 0xc0, 0x7f}));
  EXPECT_EQ(values<uint8_t>(file, "bool", DType::kBool), (Bytes{0, 1}));
  expect_limits<int64_t>(file, "i64");
  expect_limits<int32_t>(file, "i32");
  expect_limits<int16_t>(file, "i16");
  expect_limits<int8_t>(file, "i8");
  expect_limits<uint64_t>(file, "u64");
  expect_limits<uint32_t>(file, "u32");
  expect_limits<uint16_t>(file, "u16");
  expect_limits<uint8_t>(file, "u8");
  EXPECT_EQ(file.tensors().size(), static_cast<size_t>(kDTypeCount));
}

}  // namespace
}  // namespace kdt::kdtr
