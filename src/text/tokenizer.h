// Text to token ids and back. Reads what Kimi (tiktoken.model) and Hugging Face (tokenizer.json,
// byte-level BPE) checkpoints ship, and gives the ids that PyPI tiktoken and tokenizers give.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "text/added_tokens.h"
#include "text/bpe.h"
#include "text/split_pattern.h"
#include "text/tokenizer_spec.h"

namespace kdt::text {

// Whether the content of an added token (special or not, "<|im_end|>" or "<think>") found in text
// becomes that token, or is encoded like any other characters. Text from users is kAsText.
enum class SpecialTokens { kParse, kAsText };

// Immutable after construction; thread-safe. Ids are those of the checkpoint's embedding rows.
class Tokenizer {
 public:
  // From a checkpoint directory: tiktoken.model (with tokenizer_config.json and config.json where
  // present) or else tokenizer.json. Where both exist they should agree, and tiktoken.model is
  // read: it is the one that Kimi publishes. Throws kIo, kBadFile or kUnsupported naming the file.
  static Tokenizer load(const std::string& dir);
  explicit Tokenizer(TokenizerSpec spec);

  // No BOS or other token is added. Ill-formed UTF-8 is first replaced by U+FFFD, as Python's
  // errors='replace' does. Text from a tiktoken.model is first cut as Kimi's own wrapper does:
  // every 400,000 characters, and within each such part every 25,000 whitespace or non-whitespace
  // characters in a row. Takes O(n log n) time; throws kInvalidArgument above 256 MiB of text.
  std::vector<int32_t> encode(std::string_view text, SpecialTokens specials) const;

  // The text of all ids, special tokens included; ill-formed UTF-8 becomes U+FFFD as above.
  std::string decode(std::span<const int32_t> ids) const;

  // The bytes of one token, U+FFFD for an id that names none (models pad their vocabularies).
  std::string_view token_bytes(int32_t id) const;

  // The id of the added token with this content.
  std::optional<int32_t> find_added(std::string_view content) const;
  bool is_special(int32_t id) const;  // an added token that is not text, such as <|im_end|>
  int32_t vocab_size() const { return vocab_size_; }  // largest id + 1
  const std::string& source() const { return source_; }

 private:
  struct Scratch;
  void encode_slice(std::string_view text, SpecialTokens specials, Scratch* scratch) const;
  void encode_added(std::string_view text, size_t stage, Scratch* scratch) const;
  void encode_plain(std::string_view text, Scratch* scratch) const;

  std::string source_;
  BytePairEncoder bpe_;
  std::vector<SplitPattern> splits_;
  bool cut_long_runs_;
  AddedTokenMatcher matchers_[2];  // searched in turn: tokens not normalized, then the others
  std::unordered_map<std::string, int32_t> added_ids_;
  std::unordered_map<int32_t, AddedToken> added_;
  int32_t vocab_size_;
};

// Text of ids that arrive one by one: holds back bytes until their character is complete, so that
// the concatenated output equals Tokenizer::decode of all ids. Not thread-safe; refers to the
// tokenizer.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}

  std::string feed(int32_t id);
  std::string feed(std::span<const int32_t> ids);
  std::string finish();  // what is held back, as U+FFFD; ready for the next text

 private:
  const Tokenizer* tokenizer_;
  std::string pending_;  // the beginning of one character, at most 3 bytes
};

}  // namespace kdt::text
