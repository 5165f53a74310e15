// Recognizing formats. What the prompts are is tested in python/tests/test_chat.py.
#include "text/chat.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "base/error.h"

namespace kdt::text {
namespace {

class ChatFormatTest : public ::testing::Test {
 protected:
  void SetUp() override {
    dir_ =
        std::filesystem::temp_directory_path() /
        ("kdt_chat_" + std::string(testing::UnitTest::GetInstance()->current_test_info()->name()));
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directory(dir_);
  }
  void TearDown() override { std::filesystem::remove_all(dir_); }
  void write(const char* name, const std::string& text) { std::ofstream(dir_ / name) << text; }
  std::string error() {
    try {
      detect_chat_format(dir_.string());
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::kUnsupported);
      return std::string(e.what()).substr(dir_.string().size());
    }
    return "no error";
  }

  std::filesystem::path dir_;
};

const std::string kTurns = "<|im_user|>user<|im_middle|> <|im_assistant|>assistant<|im_middle|>";
const std::string kSystem = "You are Kimi, an AI assistant created by Moonshot AI.";

TEST_F(ChatFormatTest, KnowsTheTinyModel) {
  EXPECT_EQ(detect_chat_format(KDT_SOURCE_DIR "/models/tiny-k2"), ChatFormat::kTiny);
}

TEST_F(ChatFormatTest, TellsKimiTemplatesApart) {
  const std::string thinking = kTurns + "tool_declare <think></think>";
  const std::pair<std::string, ChatFormat> cases[] = {
      {thinking + kSystem, ChatFormat::kKimiK2Thinking},
      {thinking + kSystem + "{% if tools_ts_str %}", ChatFormat::kKimiK25},
      {thinking + kSystem + "{% if tools_ts_str %} preserve_thinking", ChatFormat::kKimiK26},
      {thinking + "{% if tools_ts_str %}", ChatFormat::kKimiK27Code},
  };
  for (const auto& [text, format] : cases) {
    write("chat_template.jinja", text);
    EXPECT_EQ(detect_chat_format(dir_.string()), format) << text;
  }
}

TEST_F(ChatFormatTest, ReadsTheTemplateOfTokenizerConfig) {
  write("tokenizer_config.json",
        "{\"chat_template\": \"" + kTurns + "tool_declare <think>" + kSystem + "\"}");
  EXPECT_EQ(detect_chat_format(dir_.string()), ChatFormat::kKimiK2Thinking);
}

TEST_F(ChatFormatTest, RefusesUnknownAndMissingTemplates) {
  EXPECT_EQ(error(),
            ": no chat template (chat_template.jinja, or a string in tokenizer_config.json)");
  write("chat_template.jinja", "<|im_start|>{{ messages[0].content }}");
  EXPECT_EQ(error(),
            ": unknown chat template; known are those of tiny-k2, Kimi K2-Thinking, K2.5, K2.6 and "
            "K2.7-Code");
}

TEST(Chat, NeedsTheFormatsSpecialTokens) {
  TokenizerSpec spec;
  spec.source = "bare";
  for (int byte = 0; byte < 256; ++byte) spec.vocab.push_back({byte, {static_cast<char>(byte)}});
  const Tokenizer tokenizer(std::move(spec));
  try {
    encode_chat(tokenizer, ChatFormat::kKimiK26, {}, {});
    FAIL() << "no error";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "bare: no token <|im_system|>, which chat format kimi-k2.6 needs");
  }
}

}  // namespace
}  // namespace kdt::text
