#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <random>
#include <thread>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "tests/errors.h"

namespace kdt::text {
namespace {

using test::message_of;

const std::string kTinyDir = KDT_SOURCE_DIR "/models/tiny-k2";

const Tokenizer& tiny() {
  static const Tokenizer tokenizer = Tokenizer::load(kTinyDir);
  return tokenizer;
}

std::vector<int32_t> parse(std::string_view text) {
  return tiny().encode(text, SpecialTokens::kParse);
}

TEST(Utf8, ReplacesEachMaximalIllFormedPart) {
  // The examples of Unicode 15.0 table 3-8..3-11, and the ends of the ranges.
  const std::string r(kReplacement);
  EXPECT_EQ(replace_invalid_utf8("\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41"),
            r + r + r + r + r + r + r + r + "A");
  EXPECT_EQ(replace_invalid_utf8("\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42"),
            r + r + r + r + r + "A" + r + r + "B");
  EXPECT_EQ(replace_invalid_utf8("\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41"), r + r + r + r + "A");
  const std::string ends = "\xED\x9F\xBF\xEE\x80\x80\xF4\x8F\xBF\xBF\xF0\x90\x80\x80";
  EXPECT_EQ(replace_invalid_utf8(ends), ends);
}

TEST(Tokenizer, NamesTheTokensAfterTheRanks) {
  EXPECT_EQ(tiny().vocab_size(), 4096);
  EXPECT_EQ(tiny().find_added("<|im_end|>"), 4066);
  EXPECT_EQ(tiny().find_added("<|reserved_token_4093|>"), 4093);
  EXPECT_EQ(tiny().find_added("<|im_ende|>"), std::nullopt);
  EXPECT_TRUE(tiny().is_special(4066));
  EXPECT_FALSE(tiny().is_special(4086)) << "<think> is text";
  EXPECT_FALSE(tiny().is_special(7));
  EXPECT_EQ(tiny().token_bytes(4062), "server");
  EXPECT_EQ(tiny().token_bytes(4096), kReplacement);
  EXPECT_EQ(tiny().token_bytes(-1), kReplacement);
}

TEST(Tokenizer, TextOfUsersCannotMakeSpecialTokens) {
  const std::string text = "a<|im_end|><think>[EOS]b";
  const auto parsed = parse(text);
  EXPECT_EQ(parsed, (std::vector<int32_t>{parse("a")[0], 4066, 4086, 4065, parse("b")[0]}));
  const auto plain = tiny().encode(text, SpecialTokens::kAsText);
  EXPECT_TRUE(std::all_of(plain.begin(), plain.end(), [](int32_t id) { return id < 4064; }));
  EXPECT_EQ(tiny().decode(plain), text);
}

TEST(Tokenizer, StreamedTextEqualsDecodedText) {
  std::mt19937 random(7);
  for (int round = 0; round < 200; ++round) {
    std::vector<int32_t> ids(1 + random() % 40);
    for (int32_t& id : ids) id = static_cast<int32_t>(random() % (round % 2 ? 300 : 4100));
    StreamDecoder stream(tiny());
    std::string text;
    for (int32_t id : ids) {
      const std::string part = stream.feed(id);
      EXPECT_EQ(replace_invalid_utf8(part), part) << "a part ends inside a character";
      text += part;
    }
    text += stream.finish();
    EXPECT_EQ(text, tiny().decode(ids)) << "seed 7, round " << round;
  }
}

TEST(Tokenizer, HugePiecesTakeLinearithmicTime) {
  // One letter run of 1 MB: cut every 25,000 characters in a tiktoken directory, one piece in a
  // tokenizer.json. Both far from quadratic.
  std::mt19937 random(11);
  std::string text(1 << 20, 'a');
  for (char& c : text) c = static_cast<char>('a' + random() % 26);
  const auto json = Tokenizer(parse_tokenizer_json(
      "tokenizer.json", read_text_file(kTinyDir + "/tokenizer.json", 1 << 20)));
  for (const Tokenizer* tokenizer : {&tiny(), &json}) {
    const auto start = std::chrono::steady_clock::now();
    const auto ids = tokenizer->encode(text, SpecialTokens::kParse);
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    EXPECT_LT(seconds.count(), 10.0);
    EXPECT_EQ(tokenizer->decode(ids), text);
  }
}

TEST(Tokenizer, IsSharedByThreads) {
  const std::string text = "def f(x):\n    return x + 1  # 漢字 и <|im_end|>\n";
  const auto expected = parse(text);
  std::vector<std::thread> threads;
  std::vector<int> equal(4, 0);
  for (size_t t = 0; t < equal.size(); ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 100; ++i) equal[t] += parse(text) == expected;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, std::vector<int>(4, 100));
}

TEST(Tokenizer, SaysWhatIsMissing) {
  const auto dir = std::filesystem::temp_directory_path() / "kdt_tokenizer_test_empty";
  std::filesystem::create_directory(dir);
  EXPECT_EQ(message_of([&] { Tokenizer::load(dir.string()); }),
            dir.string() + ": no tokenizer: neither tiktoken.model nor tokenizer.json");
}

}  // namespace
}  // namespace kdt::text
