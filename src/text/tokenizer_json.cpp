// parse_tokenizer_json: the byte-level BPE part of Hugging Face's tokenizer.json.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "base/utf8.h"
#include "text/tokenizer_spec.h"

namespace kdt::text {
namespace {

// GPT-2's pattern, which ByteLevel applies with use_regex.
constexpr std::string_view kByteLevelPattern =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// GPT-2's printable alphabet for bytes: printable Latin-1 stands for itself, the other 68 bytes are
// U+0100.. in order. Entry = byte + 1, 0 where the code point is not in the alphabet.
std::array<uint16_t, 0x144> make_alphabet() {
  std::array<uint16_t, 0x144> byte_of{};
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
    byte_of[printable ? byte : next++] = static_cast<uint16_t>(byte + 1);
  }
  return byte_of;
}

// A token that uses any other character stands for its own text, as the ByteLevel decoder has it,
// and no text is encoded as it.
VocabEntry vocab_entry(int32_t id, std::string_view token) {
  static const std::array<uint16_t, 0x144> byte_of = make_alphabet();
  std::string bytes;
  for (size_t at = 0; at < token.size();) {
    const Utf8Unit unit = first_utf8_unit(token.substr(at));
    const uint16_t entry = unit.code_point < byte_of.size() ? byte_of[unit.code_point] : 0;
    if (entry == 0) return {.id = id, .bytes = std::string(token), .decode_only = true};
    bytes.push_back(static_cast<char>(entry - 1));
    at += unit.bytes;
  }
  return {.id = id, .bytes = std::move(bytes)};
}

class Reader {
 public:
  Reader(const Json& root, const std::string& source) : source_(source), root_(root, source) {
    spec_.source = source;
  }

  TokenizerSpec read() {
    const JsonObject model = root_.object("model");
    read_model_options(model);
    read_vocab(model);
    read_merges(model);
    read_added_tokens();
    protect_special_tokens();
    read_normalizer();
    read_pre_tokenizer(root_.object("pre_tokenizer"));
    if (!has_byte_level_) refuse("pre_tokenizer", "no ByteLevel step; only byte-level BPE is read");
    if (root_.object("decoder").text_or("type", "") != "ByteLevel")
      refuse("decoder", "not ByteLevel");
    return std::move(spec_);
  }

 private:
  [[noreturn]] void refuse(std::string_view field, std::string_view what) const {
    throw_error(ErrorCode::kUnsupported, "{}: {}: {}", source_, field, what);
  }

  void read_model_options(const JsonObject& model) {
    model.require_default("type", "BPE");
    if (model.number_or("dropout", 0, 0, 1) != 0) model.unsupported("dropout", "0");
    model.require_default("continuing_subword_prefix", "");
    model.require_default("end_of_word_suffix", "");
    model.require_default("byte_fallback", false);
    spec_.whole_piece_first = model.boolean_or("ignore_merges", false);
  }

  void read_vocab(const JsonObject& model) {
    const Json* vocab = model.find("vocab");
    if (!vocab || !vocab->is_object()) model.fail("vocab", "an object");
    for (const auto& [token, id] : vocab->items()) {
      if (!id.is_number_integer()) {
        throw_error(ErrorCode::kBadFile, "{}: model.vocab['{}'] is {}, expected an integer",
                    source_, token, id.type_name());
      }
      const int32_t checked = checked_token_id(source_, id.get<int64_t>());
      ids_.emplace(token, checked);
      tokens_.emplace(checked, token);
      spec_.vocab.push_back(vocab_entry(checked, token));
    }
  }

  int32_t vocab_id(const std::string& token, size_t merge) const {
    const auto found = ids_.find(token);
    if (found == ids_.end()) {
      throw_error(ErrorCode::kBadFile, "{}: model.merges[{}] uses '{}', which is not in the vocab",
                  source_, merge, token);
    }
    return found->second;
  }

  void read_merges(const JsonObject& model) {
    const Json& merges = model.list("merges");
    spec_.merges.emplace();
    for (size_t i = 0; i < merges.size(); ++i) {
      const Json& merge = merges[i];
      std::string left, right;
      if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
        left = merge[0].get<std::string>();
        right = merge[1].get<std::string>();
      } else if (merge.is_string()) {
        const std::string& both = merge.get_ref<const std::string&>();
        const size_t space = both.find(' ');
        left = both.substr(0, space);
        right = space == std::string::npos ? "" : both.substr(space + 1);
      }
      if (left.empty() || right.empty()) {
        throw_error(ErrorCode::kBadFile,
                    "{}: model.merges[{}] is neither \"left right\" nor [\"left\", \"right\"]",
                    source_, i);
      }
      spec_.merges->push_back({vocab_id(left, i), vocab_id(right, i), vocab_id(left + right, i)});
    }
  }

  void read_added_tokens() {
    if (!root_.find("added_tokens")) return;
    for (const Json& entry : root_.list("added_tokens")) {
      const std::string content = JsonObject(entry, source_, "added_tokens.").text("content");
      const JsonObject token(entry, source_, fmt::format("added_tokens['{}'].", content));
      const auto checked = static_cast<int32_t>(token.integer("id", 0, kMaxTokenId));
      for (const char* flag : {"lstrip", "rstrip", "single_word"})
        token.require_default(flag, false);
      const auto same_id = tokens_.find(checked);
      const auto same_content = ids_.find(content);
      if ((same_id != tokens_.end() && same_id->second != content) ||
          (same_content != ids_.end() && same_content->second != checked)) {
        throw_error(ErrorCode::kBadFile, "{}: added token '{}' with id {} contradicts model.vocab",
                    source_, content, checked);
      }
      const bool special = token.boolean_or("special", false);
      spec_.added.push_back({.id = checked,
                             .content = content,
                             .special = special,
                             .normalized = token.boolean_or("normalized", !special)});
    }
  }

  // A special token that is also in the vocab is never the result of merging ordinary text, so that
  // SpecialTokens::kAsText holds. (A single byte stays what it is: every text needs it.)
  void protect_special_tokens() {
    std::unordered_set<int32_t> special;
    for (const AddedToken& token : spec_.added) {
      if (token.special && token.content.size() > 1) special.insert(token.id);
    }
    for (VocabEntry& entry : spec_.vocab) {
      if (special.contains(entry.id)) entry.decode_only = true;
    }
    std::erase_if(*spec_.merges, [&](const MergeRule& m) { return special.contains(m.merged); });
  }

  void read_normalizer() const {
    const auto normalizer = root_.object_or_none("normalizer");
    if (!normalizer) return;
    const std::string type = normalizer->text_or("type", "");
    if (type != "Sequence" || !normalizer->list("normalizers").empty())
      refuse("normalizer", "type '" + type + "', only null is read");
  }

  void read_pre_tokenizer(const JsonObject& step) {
    const std::string type = step.text_or("type", "");
    if (has_byte_level_) refuse("pre_tokenizer", "a step after ByteLevel");
    if (type == "Sequence") {
      for (const Json& value : step.list("pretokenizers")) {
        const JsonObject inner(value, source_, "pre_tokenizer.");
        if (inner.text_or("type", "") == "Sequence")
          refuse("pre_tokenizer", "a Sequence in a Sequence");
        read_pre_tokenizer(inner);
      }
    } else if (type == "Split") {
      read_split(step);
    } else if (type == "ByteLevel") {
      has_byte_level_ = true;
      if (step.boolean_or("add_prefix_space", true)) step.unsupported("add_prefix_space", "false");
      if (step.boolean_or("use_regex", true))
        spec_.splits.push_back({.pattern = std::string(kByteLevelPattern)});
    } else {
      refuse("pre_tokenizer", "type '" + type + "', only Sequence, Split and ByteLevel are read");
    }
  }

  void read_split(const JsonObject& step) {
    const JsonObject pattern = step.object("pattern");
    const bool is_regex = pattern.find("Regex") != nullptr;
    const bool invert = step.boolean_or("invert", false);
    const std::string behavior = step.text_or("behavior", "");
    const bool isolated = behavior == "Isolated";
    if (!isolated && !(behavior == "Removed" && invert))
      step.unsupported("behavior", "Isolated, or Removed with invert true");
    spec_.splits.push_back(
        {.pattern = pattern.text(is_regex ? "Regex" : "String"),
         .syntax = is_regex ? SplitPattern::Syntax::kRegex : SplitPattern::Syntax::kLiteral,
         .gaps = isolated ? SplitPattern::Gaps::kKeep : SplitPattern::Gaps::kDrop});
  }

  const std::string& source_;
  JsonObject root_;
  TokenizerSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> tokens_;
  bool has_byte_level_ = false;
};

}  // namespace

TokenizerSpec parse_tokenizer_json(const std::string& source, std::string_view json) {
  const Json root = parse_json(json, source);
  return Reader(root, source).read();
}

}  // namespace kdt::text
