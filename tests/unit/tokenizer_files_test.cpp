// What the tokenizer's files may and may not say.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "tests/errors.h"
#include "text/split_pattern.h"
#include "text/tokenizer.h"
#include "text/tokenizer_spec.h"

namespace kdt::text {
namespace {

using test::message_of;

const std::string kTinyDir = KDT_SOURCE_DIR "/models/tiny-k2";

nlohmann::json tiny_json() {
  return nlohmann::json::parse(read_text_file(kTinyDir + "/tokenizer.json", 1 << 20));
}

std::string json_error(const nlohmann::json& json) {
  return message_of([&] { Tokenizer(parse_tokenizer_json("t.json", json.dump())); });
}

TEST(TokenizerJson, RefusesWhatItDoesNotRead) {
  const struct {
    const char* pointer;
    nlohmann::json value;
    std::string message;
  } cases[] = {
      {"/model/type", "WordPiece", "t.json: model.type is \"WordPiece\", expected \"BPE\""},
      {"/model/dropout", 0.1, "t.json: model.dropout is 0.1, expected 0"},
      {"/model/byte_fallback", true, "t.json: model.byte_fallback is true, expected false"},
      {"/model/end_of_word_suffix", "</w>",
       "t.json: model.end_of_word_suffix is \"</w>\", expected \"\""},
      {"/normalizer", {{"type", "NFC"}}, "t.json: normalizer: type 'NFC', only null is read"},
      {"/decoder", {{"type", "Metaspace"}}, "t.json: decoder: not ByteLevel"},
      {"/pre_tokenizer",
       {{"type", "Whitespace"}},
       "t.json: pre_tokenizer: type 'Whitespace', only Sequence, Split and ByteLevel are read"},
      {"/pre_tokenizer/pretokenizers/1/add_prefix_space", true,
       "t.json: pre_tokenizer.add_prefix_space is true, expected false"},
      {"/pre_tokenizer/pretokenizers/0/behavior", "MergedWithNext",
       "t.json: pre_tokenizer.behavior is \"MergedWithNext\", expected Isolated, or Removed with "
       "invert true"},
      {"/pre_tokenizer/pretokenizers/1/type", "Split",
       "t.json: pre_tokenizer.pattern is missing, expected an object"},
      {"/added_tokens/2/lstrip", true,
       "t.json: added_tokens['<|im_end|>'].lstrip is true, expected false"},
      {"/added_tokens/2/single_word", true,
       "t.json: added_tokens['<|im_end|>'].single_word is true, expected false"},
      {"/added_tokens/2/id", 17,
       "t.json: added token '<|im_end|>' with id 17 contradicts model.vocab"},
      {"/added_tokens/2/id", -1,
       "t.json: added_tokens['<|im_end|>'].id is -1, expected an integer from 0 to 4194303"},
      {"/added_tokens/2/content", "", "t.json: added token 4066 has 0 bytes, expected 1..1024"},
      {"/added_tokens/2/content", "[BOS]", "t.json: added token '[BOS]' appears twice"},
      {"/added_tokens/2/id", 4065, "t.json: added token id 4065 appears twice"},
      {"/model/vocab/!", 1, "t.json: token id 1 appears twice"},
      {"/model/vocab/!", 9000000000000, "t.json: token id 9000000000000 is outside 0..4194303"},
      {"/model/vocab/!", "0", "t.json: model.vocab['!'] is string, expected an integer"},
      {"/model/merges/0", "a",
       "t.json: model.merges[0] is neither \"left right\" nor [\"left\", \"right\"]"},
      {"/model/merges/0",
       {"a", "ghost"},
       "t.json: model.merges[0] uses 'ghost', which is not in the vocab"},
      {"/model/merges", 3, "t.json: model.merges is 3, expected a list"},
      {"/model", nullptr, "t.json: model is null, expected an object"},
  };
  for (const auto& c : cases) {
    nlohmann::json json = tiny_json();
    json[nlohmann::json::json_pointer(c.pointer)] = c.value;
    EXPECT_EQ(json_error(json), c.message) << c.pointer;
  }
  EXPECT_EQ(json_error(tiny_json()), "no error");
}

TEST(TokenizerJson, RefusesBrokenJson) {
  EXPECT_TRUE(message_of([] {
                parse_tokenizer_json("t.json", "{\"model\": ");
              }).starts_with("t.json: not valid JSON: "));
  EXPECT_EQ(message_of([] { parse_tokenizer_json("t.json", std::string(1 << 20, '[')); }),
            "t.json: JSON nested deeper than 100 levels");
  EXPECT_EQ(message_of([] { parse_tokenizer_json("t.json", "[]"); }),
            "t.json: model is missing, expected an object");
}

TEST(TokenizerJson, TextNeverMergesIntoASpecialToken) {
  // As in tokenizers whose vocab lists the special tokens, here one that merges could make.
  nlohmann::json json = tiny_json();
  const int id = json["model"]["vocab"]["self"];
  json["added_tokens"].push_back({{"id", id}, {"content", "self"}, {"special", true}});
  for (const bool ignore_merges : {false, true}) {
    json["model"]["ignore_merges"] = ignore_merges;
    const Tokenizer tokenizer(parse_tokenizer_json("t.json", json.dump()));
    const auto ids = tokenizer.encode("self", SpecialTokens::kAsText);
    EXPECT_GT(ids.size(), 1u);
    EXPECT_EQ(tokenizer.decode(ids), "self");
    EXPECT_EQ(tokenizer.encode("self", SpecialTokens::kParse), std::vector<int32_t>{id});
  }
}

TEST(TokenizerJson, VocabTextOutsideTheByteAlphabetIsOnlyDecoded) {
  nlohmann::json json = tiny_json();
  json["model"]["vocab"]["字字"] = 5000;
  json["model"]["ignore_merges"] = true;
  const Tokenizer tokenizer(parse_tokenizer_json("t.json", json.dump()));
  EXPECT_EQ(tokenizer.token_bytes(5000), "字字");
  const auto ids = tokenizer.encode("字字", SpecialTokens::kParse);
  EXPECT_GT(ids.size(), 1u);
  EXPECT_EQ(tokenizer.decode(ids), "字字");
}

TEST(TokenizerJson, NeedsEveryByte) {
  nlohmann::json json = tiny_json();
  json["model"]["vocab"].erase("!");
  json["model"]["merges"] = nlohmann::json::array();
  EXPECT_EQ(json_error(json),
            "t.json: no token for the single byte 0x21; byte-level BPE needs all 256");
}

std::string ranks() {
  return read_text_file(kTinyDir + "/tiktoken.model", 1 << 20);
}

std::string tiktoken_error(const std::string& text, const std::string& tokenizer_config = "",
                           const std::string& config = "") {
  return message_of([&] { Tokenizer(parse_tiktoken("m", text, tokenizer_config, config)); });
}

TEST(Tiktoken, NamesReservedTokensUpToTheVocabulary) {
  const auto count = [](const char* tokenizer_config, const char* config) {
    return Tokenizer(parse_tiktoken("m", ranks(), tokenizer_config, config)).vocab_size();
  };
  EXPECT_EQ(count("", ""), 4064);
  EXPECT_EQ(count("", R"({"vocab_size": 4096})"), 4096);
  EXPECT_EQ(count("", R"({"text_config": {"vocab_size": 4100}, "vocab_size": 5000})"), 4100);
  const char* named = R"({"added_tokens_decoder": {"4069": {"content": "[X]", "special": true}}})";
  EXPECT_EQ(count(named, ""), 4070);
  EXPECT_EQ(count(named, R"({"vocab_size": 4080})"), 4080);
  const Tokenizer tokenizer(parse_tiktoken("m", ranks(), named, R"({"vocab_size": 4080})"));
  EXPECT_EQ(tokenizer.find_added("[X]"), 4069);
  EXPECT_EQ(tokenizer.find_added("<|reserved_token_4068|>"), 4068);
  EXPECT_EQ(tokenizer.find_added("<|reserved_token_4079|>"), 4079);
}

TEST(Tiktoken, RefusesBrokenFiles) {
  EXPECT_EQ(tiktoken_error("IQ== 0\nIg==1\n"), "m: line 2 is not 'base64 rank'");
  EXPECT_EQ(tiktoken_error("IQ= 0\n"), "m: line 1 is not 'base64 rank'");
  EXPECT_EQ(tiktoken_error("I*== 0\n"), "m: line 1 is not 'base64 rank'");
  EXPECT_EQ(tiktoken_error("IQ== 0x\n"), "m: line 1 is not 'base64 rank'");
  EXPECT_EQ(tiktoken_error("IQ== 7\n"), "m: rank 7 among 1 ranks, expected 0..0");
  EXPECT_EQ(tiktoken_error("IQ== 0\nIg== 0\n"), "m: token id 0 appears twice");
  EXPECT_EQ(tiktoken_error("IQ== 0\nIQ== 1\n"), "m: tokens 0 and 1 have the same bytes");
  EXPECT_EQ(tiktoken_error(""),
            "m: no token for the single byte 0x00; byte-level BPE needs all 256");
  EXPECT_EQ(tiktoken_error(ranks(), R"({"tokenizer_class": "QWenTokenizer"})"),
            "m with tokenizer_config.json: tokenizer_class is \"QWenTokenizer\"; of tiktoken files "
            "only Kimi's TikTokenTokenizer is known");
  EXPECT_EQ(tiktoken_error(ranks(), R"({"added_tokens_decoder": {"9": {"content": "[X]"}}})"),
            "m with tokenizer_config.json: added token 9 has the id of a rank (0..4063)");
  EXPECT_EQ(tiktoken_error(ranks(), R"({"added_tokens_decoder": {"x": {"content": "[X]"}}})"),
            "m with tokenizer_config.json: added_tokens_decoder key 'x' is not a token id");
  EXPECT_EQ(tiktoken_error(ranks(), "", R"({"vocab_size": 99999999})"),
            "m with config.json: vocab_size is 99999999, expected an integer from 0 to 4194304");
  // A few bytes must not ask for gigabytes of reserved tokens.
  EXPECT_EQ(tiktoken_error(ranks(), "", R"({"vocab_size": 4194304})"),
            "m: 4064 ranks and 0 named tokens leave 4190240 ids up to 4194303 without a token, "
            "expected at most 65536");
  EXPECT_EQ(tiktoken_error(ranks(), R"({"added_tokens_decoder": {"4194303": {"content": "[X]"}}})"),
            "m: 4064 ranks and 1 named tokens leave 4190239 ids up to 4194303 without a token, "
            "expected at most 65536");
}

TEST(SplitPattern, RewritesWhatPcre2ReadsDifferently) {
  const auto rewritten = [](const char* pattern) { return to_pcre2_pattern("p", pattern); };
  EXPECT_EQ(rewritten(R"([\p{Lu}\p{M}&&[^\p{Han}]]*)"), R"((?:(?![\p{sc:Han}])[\p{Lu}\p{M}])*)");
  EXPECT_EQ(rewritten(R"([a-z&&[^q]])"), R"((?:(?![q])[a-z]))");
  EXPECT_EQ(rewritten(R"([a-z&&[aeiou]]+)"), R"((?:(?=[aeiou])[a-z])+)");
  EXPECT_EQ(rewritten(R"(\s+(?!\S)|[^\s\p{L}])"),
            R"(\p{White_Space}+(?!\P{White_Space})|[^\p{White_Space}\p{L}])");
  EXPECT_EQ(rewritten(R"([\u4e00-\u9fa5]\.[]^\]])"), R"([\x{4e00}-\x{9fa5}]\.[\]^\]])");
  EXPECT_EQ(rewritten(R"((?i:'s|'t)\p{N}{1,3}(a)(?<!b))"), R"((?i:'s|'t)\p{N}{1,3}(a)(?<!b))");
}

TEST(SplitPattern, RefusesWhatEnginesReadDifferently) {
  for (const char* pattern :
       {R"(^a)",      R"(a$)",     R"(\w+)",     R"(\bx)",       R"((a)\1)",  R"(a{,3})",
        R"(a{1,3}+)", R"(a{x})",   R"([a[bc]])", R"([^a&&[b]])", R"([a&&b])", R"([a&&[b]c])",
        R"((?x)a)",   R"((?R))",   R"((*FAIL))", R"((?P<n>a))",  R"(\K)",     R"(\Qa\E)",
        R"(\pL)",     R"(\p{^L})", R"(\u12)",    "[a",           R"([a\)",    "\\"}) {
    EXPECT_THROW(to_pcre2_pattern("p", pattern), Error) << pattern;
  }
  EXPECT_EQ(message_of([] { to_pcre2_pattern("p", "ab\\w"); }),
            "p: split pattern uses an unsupported escape at byte 2: ab\\w");
  using Syntax = SplitPattern::Syntax;
  EXPECT_TRUE(message_of([] {
                SplitPattern("p", "a(", Syntax::kRegex, SplitPattern::Gaps::kKeep);
              }).starts_with("p: split pattern does not compile: "));
}

TEST(SplitPattern, StopsRunawayBacktracking) {
  const SplitPattern pattern("p", "(?:a|aa)+[bc]", SplitPattern::Syntax::kRegex,
                             SplitPattern::Gaps::kKeep);
  SplitPattern::State state(pattern);
  std::vector<std::string_view> pieces;
  const std::string text(200, 'a');
  EXPECT_TRUE(message_of([&] {
                pattern.split(text, &state, &pieces);
              }).starts_with("p: split pattern fails on a text of 200 bytes at byte 0: "));
}

}  // namespace
}  // namespace kdt::text
