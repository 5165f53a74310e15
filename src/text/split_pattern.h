// The regular expressions that cut text into pieces before byte-pair encoding. Tokenizer files
// write them for other engines (Oniguruma, Rust regex); they run here on PCRE2 with UTF and UCP.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kdt::text {

// The same pattern for PCRE2. What PCRE2 reads differently is rewritten:
//   [A&&[^B]], [A&&[B]]  class intersection     -> (?:(?![B])[A]), (?:(?=[B])[A])
//   \s, \S               without U+180E          -> \p{White_Space}, \P{White_Space}
//   \p{Han}              the script itself       -> \p{sc:Han} (PCRE2 means script extensions)
//   \u3040               four hex digits         -> \x{3040}
// Constructs outside the common subset (anchors, back references, \w, \b, nested classes,
// possessive intervals, inline flags but i) throw kUnsupported naming `source`.
std::string to_pcre2_pattern(const std::string& source, std::string_view pattern);

// One Split step: Immutable after construction; thread-safe (each thread has its own State).
class SplitPattern {
 public:
  enum class Syntax { kRegex, kLiteral };
  enum class Gaps { kKeep, kDrop };  // text between the matches: also pieces, or dropped

  // Throws kUnsupported or kBadFile naming `source`.
  SplitPattern(const std::string& source, std::string_view pattern, Syntax syntax, Gaps gaps);

  // Scratch space of split().
  class State {
   public:
    explicit State(const SplitPattern& pattern);

   private:
    friend class SplitPattern;
    struct Free {
      void operator()(void* p) const;  // pcre2_match_data
    };
    struct FreeContext {
      void operator()(void* p) const;  // pcre2_match_context
    };
    struct FreeStack {
      void operator()(void* p) const;  // pcre2_jit_stack
    };
    std::unique_ptr<void, Free> match_data_;
    std::unique_ptr<void, FreeStack> jit_stack_;
    std::unique_ptr<void, FreeContext> context_;
  };

  // Appends the pieces of `subject`, which must be valid UTF-8. Throws kOutOfResources where the
  // pattern backtracks beyond the limits.
  void split(std::string_view subject, State* state, std::vector<std::string_view>* pieces) const;

 private:
  struct FreeCode {
    void operator()(void* p) const;  // pcre2_code
  };
  int match(std::string_view subject, size_t start, State* state) const;

  std::string source_;
  std::unique_ptr<void, FreeCode> code_;
  Gaps gaps_;
};

}  // namespace kdt::text
