#include "text/tokenizer.h"

#include <algorithm>
#include <filesystem>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/utf8.h"

namespace kdt::text {
namespace {

constexpr size_t kMaxTextBytes = size_t{1} << 28;
constexpr size_t kMaxAddedBytes = 1024;
constexpr size_t kMaxFileBytes = size_t{1} << 28;

// str.isspace() of Python.
bool is_python_space(uint32_t c) {
  return (c >= 0x09 && c <= 0x0D) || (c >= 0x1C && c <= 0x20) || c == 0x85 || c == 0xA0 ||
         c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F ||
         c == 0x205F || c == 0x3000;
}

// The slices that Kimi's wrapper hands to tiktoken one by one.
std::vector<std::string_view> cut_long_runs(std::string_view text) {
  constexpr size_t kMaxSliceChars = 400'000, kMaxRunChars = 25'000;
  std::vector<std::string_view> slices;
  size_t begin = 0, slice_chars = 0, run_chars = 0;
  bool run_is_space = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Unit unit = first_utf8_unit(text.substr(at));
    const bool is_space = is_python_space(unit.code_point);
    const bool slice_full = slice_chars == kMaxSliceChars;
    if (slice_full || is_space != run_is_space) run_chars = 0;
    if (slice_full || run_chars == kMaxRunChars) {
      slices.push_back(text.substr(begin, at - begin));
      begin = at;
      run_chars = 0;
    }
    if (slice_full) slice_chars = 0;
    run_is_space = is_space;
    ++run_chars;
    ++slice_chars;
    at += unit.bytes;
  }
  slices.push_back(text.substr(begin));
  return slices;
}

BytePairEncoder make_encoder(TokenizerSpec* spec) {
  if (!spec->merges) {
    return {spec->source, std::move(spec->vocab), BytePairEncoder::FromRanks{}};
  }
  return {spec->source, std::move(spec->vocab), *spec->merges, spec->whole_piece_first};
}

}  // namespace

struct Tokenizer::Scratch {
  std::vector<int32_t> ids;
  std::vector<SplitPattern::State> states;
  std::vector<std::string_view> pieces, finer;
  BpeWorkspace bpe;
};

Tokenizer::Tokenizer(TokenizerSpec spec)
    : source_(spec.source), bpe_(make_encoder(&spec)), cut_long_runs_(spec.cut_long_runs) {
  for (const SplitStep& step : spec.splits) {
    splits_.emplace_back(source_, step.pattern, step.syntax, step.gaps);
  }
  vocab_size_ = bpe_.id_limit();
  for (AddedToken& token : spec.added) {
    if (token.content.empty() || token.content.size() > kMaxAddedBytes) {
      throw_error(ErrorCode::kBadFile, "{}: added token {} has {} bytes, expected 1..{}", source_,
                  token.id, token.content.size(), kMaxAddedBytes);
    }
    if (added_.contains(token.id)) {
      throw_error(ErrorCode::kBadFile, "{}: added token id {} appears twice", source_, token.id);
    }
    if (!added_ids_.emplace(token.content, token.id).second) {
      throw_error(ErrorCode::kBadFile, "{}: added token '{}' appears twice", source_,
                  token.content);
    }
    vocab_size_ = std::max(vocab_size_, token.id + 1);
    matchers_[token.normalized ? 1 : 0].add(token);
    added_.emplace(token.id, std::move(token));
  }
}

Tokenizer Tokenizer::load(const std::string& dir) {
  const auto path = [&](const char* name) { return (std::filesystem::path(dir) / name).string(); };
  const auto text_or_empty = [&](const char* name) {
    return file_exists(path(name)) ? read_text_file(path(name), kMaxFileBytes) : std::string();
  };
  const std::string ranks = path("tiktoken.model"), json = path("tokenizer.json");
  if (file_exists(ranks)) {
    return Tokenizer(parse_tiktoken(ranks, read_text_file(ranks, kMaxFileBytes),
                                    text_or_empty("tokenizer_config.json"),
                                    text_or_empty("config.json")));
  }
  if (file_exists(json)) {
    return Tokenizer(parse_tokenizer_json(json, read_text_file(json, kMaxFileBytes)));
  }
  throw_error(ErrorCode::kIo, "{}: no tokenizer: neither tiktoken.model nor tokenizer.json", dir);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, SpecialTokens specials) const {
  if (text.size() > kMaxTextBytes) {
    throw_error(ErrorCode::kInvalidArgument, "text of {} bytes; at most {} can be tokenized",
                text.size(), kMaxTextBytes);
  }
  const std::string valid = replace_invalid_utf8(text);
  Scratch scratch;
  for (const SplitPattern& split : splits_) scratch.states.emplace_back(split);
  if (cut_long_runs_) {
    for (std::string_view slice : cut_long_runs(valid)) encode_slice(slice, specials, &scratch);
  } else {
    encode_slice(valid, specials, &scratch);
  }
  return std::move(scratch.ids);
}

void Tokenizer::encode_slice(std::string_view text, SpecialTokens specials,
                             Scratch* scratch) const {
  if (specials == SpecialTokens::kParse) {
    encode_added(text, 0, scratch);
  } else {
    encode_plain(text, scratch);
  }
}

void Tokenizer::encode_added(std::string_view text, size_t stage, Scratch* scratch) const {
  if (stage == std::size(matchers_)) {
    encode_plain(text, scratch);
    return;
  }
  for (size_t at = 0; at < text.size();) {
    const AddedTokenMatcher::Match match = matchers_[stage].find(text, at);
    encode_added(text.substr(at, match.begin - at), stage + 1, scratch);
    if (match.id >= 0) scratch->ids.push_back(match.id);
    at = match.end;
  }
}

void Tokenizer::encode_plain(std::string_view text, Scratch* scratch) const {
  if (text.empty()) return;
  scratch->pieces.assign(1, text);
  for (size_t i = 0; i < splits_.size(); ++i) {
    scratch->finer.clear();
    for (std::string_view piece : scratch->pieces) {
      splits_[i].split(piece, &scratch->states[i], &scratch->finer);
    }
    scratch->pieces.swap(scratch->finer);
  }
  for (std::string_view piece : scratch->pieces) {
    bpe_.encode_piece(piece, &scratch->bpe, &scratch->ids);
  }
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string bytes;
  for (int32_t id : ids) bytes += token_bytes(id);
  return replace_invalid_utf8(bytes);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  if (const auto added = added_.find(id); added != added_.end()) return added->second.content;
  const std::string* bytes = bpe_.token_bytes(id);
  return bytes != nullptr ? std::string_view(*bytes) : kReplacement;
}

std::optional<int32_t> Tokenizer::find_added(std::string_view content) const {
  const auto found = added_ids_.find(std::string(content));
  if (found == added_ids_.end()) return std::nullopt;
  return found->second;
}

bool Tokenizer::is_special(int32_t id) const {
  const auto added = added_.find(id);
  return added != added_.end() && added->second.special;
}

std::string StreamDecoder::feed(int32_t id) {
  return feed(std::span(&id, 1));
}

std::string StreamDecoder::feed(std::span<const int32_t> ids) {
  for (int32_t id : ids) pending_ += tokenizer_->token_bytes(id);
  // Only an unfinished character at the very end waits for more bytes.
  std::string_view rest = pending_;
  std::string out;
  while (!rest.empty()) {
    const Utf8Unit unit = first_utf8_unit(rest);
    if (unit.kind == Utf8Unit::Kind::kTruncated) break;
    out += unit.kind == Utf8Unit::Kind::kValid ? rest.substr(0, unit.bytes) : kReplacement;
    rest.remove_prefix(unit.bytes);
  }
  pending_ = std::string(rest);
  return out;
}

std::string StreamDecoder::finish() {
  std::string out = replace_invalid_utf8(pending_);
  pending_.clear();
  return out;
}

}  // namespace kdt::text
