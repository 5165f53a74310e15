// to_pcre2_pattern: one pass over the pattern, copying the common subset and rewriting the rest.
#include <pcre2.h>

#include <array>
#include <cctype>

#include "base/error.h"
#include "text/split_pattern.h"

namespace kdt::text {
namespace {

class Rewriter {
 public:
  Rewriter(const std::string& source, std::string_view pattern)
      : source_(source), pattern_(pattern) {}

  std::string run() {
    std::string out;
    while (at_ < pattern_.size()) {
      const char c = pattern_[at_];
      if (c == '[') {
        out += char_class();
      } else if (c == '\\') {
        out += escape();
      } else if (c == '(') {
        out += group_open();
      } else if (c == '{') {
        out += interval();
      } else if (c == '^' || c == '$') {
        refuse("an anchor");
      } else {
        out += c;
        ++at_;
      }
    }
    return out;
  }

 private:
  [[noreturn]] void refuse(std::string_view what) const {
    throw_error(ErrorCode::kUnsupported, "{}: split pattern uses {} at byte {}: {}", source_, what,
                at_, pattern_.substr(0, 100));
  }
  bool starts_with(std::string_view text) const { return pattern_.substr(at_).starts_with(text); }
  char peek(size_t ahead) const {
    return at_ + ahead < pattern_.size() ? pattern_[at_ + ahead] : '\0';
  }
  std::string take(size_t n) {
    const std::string taken(pattern_.substr(at_, n));
    at_ += taken.size();
    return taken;
  }

  std::string escape() {
    const char c = peek(1);
    if (c == 's' || c == 'S') {
      at_ += 2;
      return c == 's' ? "\\p{White_Space}" : "\\P{White_Space}";
    }
    if (c == 'p' || c == 'P') return property();
    if (c == 'u') return code_point();
    if (c == 'x') return take(2);  // \xHH and \x{H...}: the digits follow as ordinary characters
    constexpr std::string_view kSame = "dDrntf";
    const bool punctuation = c > ' ' && c < '\x7f' && !std::isalnum(static_cast<unsigned char>(c));
    if (kSame.find(c) == std::string_view::npos && !punctuation && c != ' ') {
      refuse("an unsupported escape");
    }
    return take(2);
  }

  std::string property() {
    const size_t close = pattern_.find('}', at_);
    if (peek(2) != '{' || close == std::string_view::npos) refuse("a property without braces");
    const std::string_view name = pattern_.substr(at_ + 3, close - at_ - 3);
    if (name.starts_with('^')) refuse("a negated property");
    if (!is_script(name)) return take(close + 1 - at_);
    const std::string rewritten = fmt::format("\\{}{{sc:{}}}", peek(1), name);
    at_ = close + 1;
    return rewritten;
  }

  static bool is_script(std::string_view name) {
    const std::string probe = fmt::format("\\p{{sc:{}}}", name);
    int error;
    PCRE2_SIZE offset;
    pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(probe.data()), probe.size(),
                                     PCRE2_UTF | PCRE2_UCP, &error, &offset, nullptr);
    pcre2_code_free(code);
    return code != nullptr;
  }

  std::string code_point() {
    const std::string_view digits = pattern_.substr(at_ + 2).substr(0, 4);
    if (digits.size() < 4 ||
        digits.find_first_not_of("0123456789abcdefABCDEF") != std::string_view::npos) {
      refuse("\\u without four hex digits");
    }
    at_ += 6;
    return fmt::format("\\x{{{}}}", digits);
  }

  std::string group_open() {
    constexpr std::array<std::string_view, 8> kSame = {"(?:",  "(?i:", "(?=", "(?!",
                                                       "(?<=", "(?<!", "(?>", "(?-i:"};
    for (std::string_view open : kSame) {
      if (starts_with(open)) return take(open.size());
    }
    if (peek(1) == '?' || peek(1) == '*') refuse("an unsupported group");
    return take(1);
  }

  // {n}, {n,} or {n,m}; anything else in braces means different things to different engines.
  std::string interval() {
    const size_t close = pattern_.find('}', at_);
    const std::string_view body = pattern_.substr(at_ + 1, close - at_ - 1);
    if (close == std::string_view::npos || body.empty() || body[0] == ',' ||
        body.find_first_not_of("0123456789,") != std::string_view::npos) {
      refuse("an unsupported interval");
    }
    if (close + 1 < pattern_.size() && pattern_[close + 1] == '+') {
      refuse("a possessive interval");
    }
    return take(close + 1 - at_);
  }

  // The items of a class after its '[' and '^', up to ']' or '&&'.
  std::string class_items() {
    std::string out;
    if (peek(0) == ']') {  // first in a class, it is itself
      out += "\\]";
      ++at_;
    }
    while (at_ < pattern_.size() && peek(0) != ']' && !starts_with("&&")) {
      if (peek(0) == '[') refuse("a nested class");
      if (peek(0) == '\\') {
        out += escape();
      } else {
        out += take(1);
      }
    }
    if (at_ == pattern_.size()) refuse("an unterminated class");
    return out;
  }

  std::string char_class() {
    ++at_;
    const bool negated = peek(0) == '^';
    if (negated) ++at_;
    const std::string items = class_items();
    if (!starts_with("&&")) {
      ++at_;
      return fmt::format("[{}{}]", negated ? "^" : "", items);
    }
    if (negated || peek(2) != '[') refuse("an unsupported class intersection");
    at_ += 3;
    const bool excluded = peek(0) == '^';
    if (excluded) ++at_;
    const std::string other = class_items();
    if (!starts_with("]]")) refuse("an unsupported class intersection");
    at_ += 2;
    return fmt::format("(?:(?{}[{}])[{}])", excluded ? '!' : '=', other, items);
  }

  const std::string& source_;
  std::string_view pattern_;
  size_t at_ = 0;
};

}  // namespace

std::string to_pcre2_pattern(const std::string& source, std::string_view pattern) {
  return Rewriter(source, pattern).run();
}

}  // namespace kdt::text
