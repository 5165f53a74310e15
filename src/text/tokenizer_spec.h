// What the files of a tokenizer say, in one form for both formats.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split_pattern.h"

namespace kdt::text {

// Token ids index tables that are allocated up to the largest one.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

inline int32_t checked_token_id(const std::string& source, int64_t id) {
  if (id < 0 || id > kMaxTokenId)
    throw_error(ErrorCode::kBadFile, "{}: token id {} is outside 0..{}", source, id, kMaxTokenId);
  return static_cast<int32_t>(id);
}

struct SplitStep {
  std::string pattern;
  SplitPattern::Syntax syntax = SplitPattern::Syntax::kRegex;
  SplitPattern::Gaps gaps = SplitPattern::Gaps::kKeep;
};

struct TokenizerSpec {
  std::string source;  // names the file in errors
  std::vector<VocabEntry> vocab;
  std::optional<std::vector<MergeRule>> merges;  // none: they follow the ids, as in tiktoken
  bool whole_piece_first = false;                // with merges: "ignore_merges"
  std::vector<AddedToken> added;                 // ids and contents distinct
  std::vector<SplitStep> splits;                 // each cuts the pieces of the one before
  bool cut_long_runs = false;                    // Kimi's limits on very long text
};

// tiktoken.model: lines of "base64 rank", ranks 0..n-1. The tokens after them are named by the
// "added_tokens_decoder" of tokenizer_config.json; those without a name up to the last named one,
// or up to the "vocab_size" of config.json (its own or its text_config's), are
// <|reserved_token_{id}|>. The file does not hold the split pattern: it is Kimi's, so another
// "tokenizer_class" throws kUnsupported. Either JSON text may be empty.
TokenizerSpec parse_tiktoken(const std::string& source, std::string_view ranks,
                             std::string_view tokenizer_config_json, std::string_view config_json);

// tokenizer.json of Hugging Face tokenizers: byte-level BPE with Split pre-tokenizers. Anything
// else throws kUnsupported naming the field; broken files throw kBadFile. Post-processors,
// truncation and padding are not applied: encoding never adds tokens.
TokenizerSpec parse_tokenizer_json(const std::string& source, std::string_view json);

}  // namespace kdt::text
