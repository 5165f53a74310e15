// parse_tiktoken: the ranks file of tiktoken, with the special tokens of Kimi's Hugging Face files.
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/json.h"
#include "text/tokenizer_spec.h"

namespace kdt::text {
namespace {

// Kimi's files leave a few hundred. Each takes some 500 bytes of memory, and none in a file.
constexpr int64_t kMaxReserved = int64_t{1} << 16;

// pat_str of TikTokenTokenizer in moonshotai's tokenization_kimi.py; its parts joined by "|".
constexpr std::string_view kKimiPattern =
    R"([\p{Han}]+)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+)"
    R"([\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?)"
    R"(|\p{N}{1,3})"
    R"(| ?[^\s\p{L}\p{N}]+[\r\n]*)"
    R"(|\s*[\r\n]+)"
    R"(|\s+(?!\S))"
    R"(|\s+)";

// Returns false unless `text` is padded base64 (RFC 4648).
bool decode_base64(std::string_view text, std::string* bytes) {
  constexpr std::string_view kAlphabet =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  if (text.size() % 4 != 0) return false;
  for (size_t at = 0; at < text.size(); at += 4) {
    const bool last = at + 4 == text.size();
    const size_t padding = !last || text[at + 3] != '=' ? 0 : text[at + 2] != '=' ? 1 : 2;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) {
      const size_t digit = i < 4 - padding ? kAlphabet.find(text[at + i]) : 0;
      if (digit == std::string_view::npos) return false;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    for (size_t i = 0; i < 3 - padding; ++i) {
      bytes->push_back(static_cast<char>(bits >> (16 - 8 * i)));
    }
  }
  return true;
}

// Ids must be 0..n-1 (in any order), as the special tokens follow them.
void parse_ranks(const std::string& source, std::string_view text, TokenizerSpec* spec) {
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view row = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (row.empty()) continue;

    const size_t space = row.find(' ');
    VocabEntry entry{-1, {}};
    const char* number_end = row.data() + row.size();
    if (space == std::string_view::npos || !decode_base64(row.substr(0, space), &entry.bytes) ||
        std::from_chars(row.data() + space + 1, number_end, entry.id).ptr != number_end) {
      throw_error(ErrorCode::kBadFile, "{}: line {} is not 'base64 rank'", source, line);
    }
    spec->vocab.push_back(std::move(entry));
  }
  const auto n = static_cast<int32_t>(spec->vocab.size());
  if (n > 0) checked_token_id(source, n - 1);
  for (const VocabEntry& entry : spec->vocab) {
    if (entry.id < 0 || entry.id >= n) {
      throw_error(ErrorCode::kBadFile, "{}: rank {} among {} ranks, expected 0..{}", source,
                  entry.id, n, n - 1);
    }
  }
}

// The content and the special flag of the tokens that tokenizer_config.json names, by id.
std::map<int32_t, AddedToken> named_tokens(const std::string& source, const JsonObject& config) {
  std::map<int32_t, AddedToken> named;
  const Json* decoder = config.find("added_tokens_decoder");
  if (!decoder) return named;
  if (!decoder->is_object()) config.fail("added_tokens_decoder", "an object");
  for (const auto& [key, value] : decoder->items()) {
    int64_t id = -1;
    if (std::from_chars(key.data(), key.data() + key.size(), id).ptr != key.data() + key.size()) {
      throw_error(ErrorCode::kBadFile, "{}: added_tokens_decoder key '{}' is not a token id",
                  source, key);
    }
    const JsonObject token(value, source, "added_tokens_decoder." + key + ".");
    named[checked_token_id(source, id)] = {.id = static_cast<int32_t>(id),
                                           .content = token.text("content"),
                                           .special = token.boolean_or("special", false),
                                           .normalized = false};
  }
  return named;
}

int64_t config_vocab_size(const std::string& source, std::string_view config_json) {
  const Json document = parse_object(config_json, source);
  const JsonObject top(document, source);
  const auto text = top.object_or_none("text_config");
  return (text && text->find("vocab_size") ? *text : top)
      .integer_or("vocab_size", 0, 0, kMaxTokenId + 1);
}

}  // namespace

TokenizerSpec parse_tiktoken(const std::string& source, std::string_view ranks,
                             std::string_view tokenizer_config_json, std::string_view config_json) {
  TokenizerSpec spec;
  spec.source = source;
  spec.splits = {{.pattern = std::string(kKimiPattern)}};
  spec.cut_long_runs = true;
  parse_ranks(source, ranks, &spec);

  const std::string config_source = source + " with tokenizer_config.json";
  const Json document = tokenizer_config_json.empty()
                            ? Json::object()
                            : parse_object(tokenizer_config_json, config_source);
  const JsonObject config(document, config_source);
  const Json* tokenizer_class = config.find("tokenizer_class");
  if (tokenizer_class && *tokenizer_class != "TikTokenTokenizer") {
    throw_error(
        ErrorCode::kUnsupported,
        "{}: tokenizer_class is {}; of tiktoken files only Kimi's TikTokenTokenizer is known",
        config_source, shown(*tokenizer_class));
  }
  std::map<int32_t, AddedToken> named = named_tokens(config_source, config);
  int64_t end = named.empty() ? 0 : int64_t{named.rbegin()->first} + 1;
  if (!config_json.empty()) {
    end = std::max(end, config_vocab_size(source + " with config.json", config_json));
  }
  const auto n_ranks = static_cast<int32_t>(spec.vocab.size());
  if (!named.empty() && named.begin()->first < n_ranks) {
    throw_error(ErrorCode::kBadFile, "{}: added token {} has the id of a rank (0..{})",
                config_source, named.begin()->first, n_ranks - 1);
  }
  const int64_t n_reserved = end - n_ranks - static_cast<int64_t>(named.size());
  if (n_reserved > kMaxReserved) {
    throw_error(ErrorCode::kBadFile,
                "{}: {} ranks and {} named tokens leave {} ids up to {} without a token, expected "
                "at most {}",
                source, n_ranks, named.size(), n_reserved, end - 1, kMaxReserved);
  }
  for (auto id = n_ranks; id < end; ++id) {
    const auto found = named.find(id);
    spec.added.push_back(found != named.end()
                             ? std::move(found->second)
                             : AddedToken{.id = id,
                                          .content = fmt::format("<|reserved_token_{}|>", id),
                                          .special = true,
                                          .normalized = false});
  }
  return spec;
}

}  // namespace kdt::text
