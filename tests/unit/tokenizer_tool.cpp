// Runs the tokenizer over a file of documents, for the tests in python/tests:
//   tokenizer_tool DIR encode|encode-as-text|decode|stream|chat < input > output
// Input and output are sequences of records: a little-endian uint32 byte count, then the bytes
// (UTF-8 text, or int32 token ids). The time spent on all records goes to stderr. A chat record is
// {"messages", "tools", "format", "options"} with OpenAI messages, its output {"text", "ids"} or
// {"error"}; without "format" the format is that of DIR.
#include <chrono>
#include <cstdio>
#include <cstring>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "text/chat.h"
#include "text/tokenizer.h"

namespace {

using kdt::text::SpecialTokens;

std::string bytes_of(const std::vector<int32_t>& ids) {
  return {reinterpret_cast<const char*>(ids.data()), ids.size() * sizeof(int32_t)};
}

std::vector<int32_t> ids_of(std::string_view bytes) {
  std::vector<int32_t> ids(bytes.size() / sizeof(int32_t));
  if (!ids.empty()) std::memcpy(ids.data(), bytes.data(), ids.size() * sizeof(int32_t));
  return ids;
}

kdt::text::ChatFormat format_named(const std::string& dir, const std::string& name) {
  using enum kdt::text::ChatFormat;
  if (name.empty()) return kdt::text::detect_chat_format(dir);
  for (auto format : {kTiny, kKimiK2Thinking, kKimiK25, kKimiK26, kKimiK27Code}) {
    if (kdt::text::chat_format_name(format) == name) return format;
  }
  throw_error(kdt::ErrorCode::kInvalidArgument, "no chat format '{}'", name);
}

kdt::text::Message message_of(const nlohmann::json& json) {
  kdt::text::Message message{.role = json.at("role"),
                             .content = json.value("content", ""),
                             .reasoning = json.value("reasoning_content", ""),
                             .name = json.value("name", ""),
                             .tool_calls = {},
                             .tool_call_id = json.value("tool_call_id", "")};
  for (const auto& call : json.value("tool_calls", nlohmann::json::array())) {
    const auto& function = call.at("function");
    message.tool_calls.push_back(
        {call.value("id", ""), function.at("name"), function.at("arguments")});
  }
  return message;
}

std::string chat(const kdt::text::Tokenizer& tokenizer, const std::string& dir,
                 std::string_view record) {
  const auto json = nlohmann::json::parse(record);
  kdt::text::Conversation conversation;
  for (const auto& message : json.at("messages")) {
    conversation.messages.push_back(message_of(message));
  }
  if (json.contains("tools")) conversation.tools_json = json["tools"].dump();
  const auto given = json.value("options", nlohmann::json::object());
  kdt::text::ChatOptions options{
      .thinking = given.value("thinking", true),
      .preserve_thinking = given.value("preserve_thinking", false),
      .add_generation_prompt = given.value("add_generation_prompt", true)};
  if (given.contains("default_system")) options.default_system = given["default_system"];
  try {
    const auto format = format_named(dir, json.value("format", ""));
    return nlohmann::json{{"text", kdt::text::render_chat(format, conversation, options)},
                          {"ids", kdt::text::encode_chat(tokenizer, format, conversation, options)}}
        .dump();
  } catch (const kdt::Error& e) {
    return nlohmann::json{{"error", e.what()}}.dump();
  }
}

std::string process(const kdt::text::Tokenizer& tokenizer, const std::string& dir,
                    std::string_view mode, std::string_view record) {
  if (mode == "chat") return chat(tokenizer, dir, record);
  if (mode == "encode") return bytes_of(tokenizer.encode(record, SpecialTokens::kParse));
  if (mode == "encode-as-text") return bytes_of(tokenizer.encode(record, SpecialTokens::kAsText));
  const std::vector<int32_t> ids = ids_of(record);
  if (mode == "decode") return tokenizer.decode(ids);
  kdt::text::StreamDecoder stream(tokenizer);
  std::string out;
  for (int32_t id : ids) out += stream.feed(id);
  return out + stream.finish();
}

void run(const std::string& dir, std::string_view mode) {
  const auto tokenizer = kdt::text::Tokenizer::load(dir);
  const std::string input{std::istreambuf_iterator<char>(std::cin), {}};
  const auto start = std::chrono::steady_clock::now();
  for (size_t at = 0; at < input.size();) {
    uint32_t size;
    std::memcpy(&size, input.data() + at, sizeof size);
    const std::string out =
        process(tokenizer, dir, mode, std::string_view(input).substr(at + 4, size));
    const auto out_size = static_cast<uint32_t>(out.size());
    std::cout.write(reinterpret_cast<const char*>(&out_size), sizeof out_size);
    std::cout << out;
    at += 4 + size;
  }
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
  fmt::print(stderr, "{:.3f} s for {} bytes\n", seconds.count(), input.size());
}

}  // namespace

int main(int argc, char** argv) {
  try {
    if (argc != 3) throw_error(kdt::ErrorCode::kInvalidArgument, "usage: tokenizer_tool DIR MODE");
    run(argv[1], argv[2]);
    return 0;
  } catch (const kdt::Error& e) {
    fmt::print(stderr, "error: {}\n", e.what());
    return 1;
  }
}
