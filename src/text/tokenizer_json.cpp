// parse_tokenizer_json: the byte-level BPE part of Hugging Face's tokenizer.json.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "base/utf8.h"
#include "text/json_fields.h"
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
  Reader(const std::string& source, const Json& root) : source_(source), root_(root) {
    spec_.source = source;
  }

  TokenizerSpec read() {
    const Json& model = require_object(source_, root_, "model");
    read_model_options(model);
    read_vocab(model);
    read_merges(model);
    read_added_tokens();
    protect_special_tokens();
    read_normalizer();
    read_pre_tokenizer(optional_field(root_, "pre_tokenizer"));
    if (!has_byte_level_) refuse("pre_tokenizer", "no ByteLevel step; only byte-level BPE is read");
    const Json& decoder = optional_field(root_, "decoder");
    if (type_of(decoder) != "ByteLevel") refuse("decoder", "not ByteLevel");
    return std::move(spec_);
  }

 private:
  [[noreturn]] void refuse(std::string_view field, std::string_view what) const {
    throw_error(ErrorCode::kUnsupported, "{}: {}: {}", source_, field, what);
  }

  static std::string type_of(const Json& object) {
    const Json& type = optional_field(object, "type");
    return type.is_string() ? type.get<std::string>() : std::string();
  }

  void read_model_options(const Json& model) {
    if (const Json& type = optional_field(model, "type"); !type.is_null() && type != "BPE") {
      refuse("model.type", type.dump() + ", only \"BPE\" is read");
    }
    const Json& dropout = optional_field(model, "dropout");
    if (!dropout.is_null() && dropout != 0) refuse("model.dropout", dropout.dump());
    for (const char* key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
      const Json& value = optional_field(model, key);
      if (!value.is_null() && value != "") refuse(fmt::format("model.{}", key), value.dump());
    }
    if (flag_field(source_, model, "byte_fallback", false)) refuse("model.byte_fallback", "true");
    spec_.whole_piece_first = flag_field(source_, model, "ignore_merges", false);
  }

  void read_vocab(const Json& model) {
    const Json& vocab = require_object(source_, model, "vocab");
    for (const auto& [token, id] : vocab.items()) {
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

  void read_merges(const Json& model) {
    const Json& merges = require_array(source_, model, "merges");
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
    const Json& added = optional_field(root_, "added_tokens");
    if (added.is_null()) return;
    if (!added.is_array()) refuse("added_tokens", "not an array");
    for (const Json& token : added) {
      const Json& id = optional_field(token, "id");
      if (!id.is_number_integer()) refuse("added_tokens", "an entry without an integer id");
      const std::string content = require_string(source_, token, "content");
      for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
        if (flag_field(source_, token, flag, false)) {
          refuse(fmt::format("added_tokens['{}'].{}", content, flag), "true");
        }
      }
      const int32_t checked = checked_token_id(source_, id.get<int64_t>());
      const auto same_id = tokens_.find(checked);
      const auto same_content = ids_.find(content);
      if ((same_id != tokens_.end() && same_id->second != content) ||
          (same_content != ids_.end() && same_content->second != checked)) {
        throw_error(ErrorCode::kBadFile, "{}: added token '{}' with id {} contradicts model.vocab",
                    source_, content, checked);
      }
      const bool special = flag_field(source_, token, "special", false);
      spec_.added.push_back({.id = checked,
                             .content = content,
                             .special = special,
                             .normalized = flag_field(source_, token, "normalized", !special)});
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
    const Json& normalizer = optional_field(root_, "normalizer");
    const bool nothing =
        normalizer.is_null() || (type_of(normalizer) == "Sequence" &&
                                 optional_field(normalizer, "normalizers") == Json::array());
    if (!nothing) refuse("normalizer", "type '" + type_of(normalizer) + "', only null is read");
  }

  void read_pre_tokenizer(const Json& step) {
    const std::string type = type_of(step);
    if (has_byte_level_) refuse("pre_tokenizer", "a step after ByteLevel");
    if (type == "Sequence") {
      const Json& steps = require_array(source_, step, "pretokenizers");
      for (const Json& inner : steps) {
        if (type_of(inner) == "Sequence") refuse("pre_tokenizer", "a Sequence in a Sequence");
        read_pre_tokenizer(inner);
      }
    } else if (type == "Split") {
      read_split(step);
    } else if (type == "ByteLevel") {
      has_byte_level_ = true;
      if (flag_field(source_, step, "add_prefix_space", true)) {
        refuse("pre_tokenizer.add_prefix_space", "true");
      }
      if (flag_field(source_, step, "use_regex", true)) {
        spec_.splits.push_back({.pattern = std::string(kByteLevelPattern)});
      }
    } else {
      refuse("pre_tokenizer", "type '" + type + "', only Sequence, Split and ByteLevel are read");
    }
  }

  void read_split(const Json& step) {
    const Json& pattern = require_object(source_, step, "pattern");
    const Json& regex = optional_field(pattern, "Regex");
    const Json& literal = optional_field(pattern, "String");
    if (!regex.is_string() && !literal.is_string()) {
      refuse("pre_tokenizer.pattern", "neither Regex nor String");
    }
    const bool invert = flag_field(source_, step, "invert", false);
    const Json& behavior = optional_field(step, "behavior");
    const bool isolated = behavior == "Isolated";
    if (!isolated && !(behavior == "Removed" && invert)) {
      refuse("pre_tokenizer.behavior",
             fmt::format("{} with invert {}; only Isolated, and Removed with invert true, are read",
                         behavior.dump(), invert));
    }
    spec_.splits.push_back(
        {.pattern = (regex.is_string() ? regex : literal).get<std::string>(),
         .syntax =
             regex.is_string() ? SplitPattern::Syntax::kRegex : SplitPattern::Syntax::kLiteral,
         .gaps = isolated ? SplitPattern::Gaps::kKeep : SplitPattern::Gaps::kDrop});
  }

  const std::string& source_;
  const Json& root_;
  TokenizerSpec spec_;
  std::unordered_map<std::string, int32_t> ids_;
  std::unordered_map<int32_t, std::string> tokens_;
  bool has_byte_level_ = false;
};

}  // namespace

TokenizerSpec parse_tokenizer_json(const std::string& source, std::string_view json) {
  const Json root = parse_json(source, json);
  return Reader(source, root).read();
}

}  // namespace kdt::text
