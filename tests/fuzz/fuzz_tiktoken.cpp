// tiktoken.model from untrusted bytes, and after a zero byte each tokenizer_config.json,
// config.json and a text: whatever tokens they give, a text's ids decode to it again. As almost no
// mutation keeps 256 byte tokens, a first line "bytes" stands for their ranks.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <string_view>

#include "base/error.h"
#include "base/utf8.h"
#include "text/tokenizer.h"

namespace {

using kdt::text::SpecialTokens;

std::string base64_of_byte(int byte) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  return {kDigits[byte >> 2], kDigits[byte << 4 & 63], '=', '='};
}

std::string expand_bytes(std::string_view ranks) {
  constexpr std::string_view kMark = "bytes\n";
  if (!ranks.starts_with(kMark)) return std::string(ranks);
  std::string out;
  for (int byte = 0; byte < 256; ++byte)
    out += base64_of_byte(byte) + ' ' + std::to_string(byte) + '\n';
  return out.append(ranks.substr(kMark.size()));
}

// Up to the next zero byte, which is dropped.
std::string_view take_part(std::string_view* input) {
  const std::string_view part = input->substr(0, input->find('\0'));
  input->remove_prefix(std::min(part.size() + 1, input->size()));
  return part;
}

// Kimi's pattern leaves no character out.
void check_text(const kdt::text::Tokenizer& tokenizer, std::string_view text) {
  const std::string expected = kdt::replace_invalid_utf8(text);
  for (const auto specials : {SpecialTokens::kAsText, SpecialTokens::kParse}) {
    const auto ids = tokenizer.encode(text, specials);
    for (const int32_t id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    if (tokenizer.decode(ids) != expected) std::abort();
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string ranks = expand_bytes(take_part(&input));
  const std::string_view tokenizer_config = take_part(&input), config = take_part(&input);
  try {
    const kdt::text::Tokenizer tokenizer(
        kdt::text::parse_tiktoken("fuzz", ranks, tokenizer_config, config));
    check_text(tokenizer, "ab abc  é 字\xFF\r\n12345 don't <|x|>");
    check_text(tokenizer, input.substr(0, 256));
  } catch (const kdt::Error& error) {
    if (error.code() == kdt::ErrorCode::kInternal) std::abort();
  }
  return 0;
}
