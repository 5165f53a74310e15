// tokenizer.json from untrusted bytes. The input is the JSON, and optionally after a zero byte a
// text: what the tokenizer makes of it must decode to the text again. As almost no mutation keeps
// 256 byte tokens, "bytes" in place of the vocab stands for them.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace {

using kdt::text::SpecialTokens;

std::string expand_vocab(std::string_view json) {
  auto root = nlohmann::json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object() ||
      root["model"].value("vocab", nlohmann::json()) != "bytes") {
    return std::string(json);
  }
  auto vocab = nlohmann::json::object();
  uint32_t next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    std::string token;
    kdt::append_utf8(printable ? byte : next++, &token);
    vocab[token] = byte;
  }
  for (const char* token : {"ab", "abc", "Ġa", "ĠĠ", "é"}) {
    vocab.emplace(token, static_cast<int>(vocab.size()));
  }
  root["model"]["vocab"] = vocab;
  return root.dump();
}

void check_text(const kdt::text::Tokenizer& tokenizer, std::string_view text) {
  const auto ids = tokenizer.encode(text, SpecialTokens::kAsText);
  tokenizer.encode(text, SpecialTokens::kParse);
  kdt::text::StreamDecoder stream(tokenizer);
  std::string streamed;
  for (int32_t id : ids) streamed += stream.feed(id);
  streamed += stream.finish();
  // Patterns that only keep their matches may drop text; nothing may be invented.
  if (streamed != tokenizer.decode(ids)) __builtin_trap();
  if (streamed.size() > kdt::replace_invalid_utf8(text).size() * 3) __builtin_trap();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  try {
    const kdt::text::Tokenizer tokenizer(
        kdt::text::parse_tokenizer_json("fuzz", expand_vocab(input.substr(0, end))));
    check_text(tokenizer, "ab abc  é 字\xFF\r\n12345 don't");
    if (end != std::string_view::npos) check_text(tokenizer, input.substr(end + 1).substr(0, 256));
  } catch (const kdt::Error&) {
  }
  return 0;
}
