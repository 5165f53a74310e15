#include "text/split_pattern.h"

#include <pcre2.h>

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace kdt::text {
namespace {

std::string pcre2_message(int code) {
  PCRE2_UCHAR buffer[256];
  pcre2_get_error_message(code, buffer, sizeof buffer);
  return reinterpret_cast<const char*>(buffer);
}

const pcre2_code* as_code(const void* p) {
  return static_cast<const pcre2_code*>(p);
}
pcre2_match_data* as_match_data(void* p) {
  return static_cast<pcre2_match_data*>(p);
}

}  // namespace

void SplitPattern::FreeCode::operator()(void* p) const {
  pcre2_code_free(static_cast<pcre2_code*>(p));
}
void SplitPattern::State::Free::operator()(void* p) const {
  pcre2_match_data_free(as_match_data(p));
}
void SplitPattern::State::FreeContext::operator()(void* p) const {
  pcre2_match_context_free(static_cast<pcre2_match_context*>(p));
}
void SplitPattern::State::FreeStack::operator()(void* p) const {
  pcre2_jit_stack_free(static_cast<pcre2_jit_stack*>(p));
}

SplitPattern::State::State(const SplitPattern& pattern)
    : match_data_(pcre2_match_data_create_from_pattern(as_code(pattern.code_.get()), nullptr)),
      context_(pcre2_match_context_create(nullptr)) {
  if (!match_data_ || !context_) throw std::bad_alloc();
}

SplitPattern::SplitPattern(const std::string& source, std::string_view pattern, Syntax syntax,
                           Gaps gaps)
    : source_(source), gaps_(gaps) {
  const bool literal = syntax == Syntax::kLiteral;
  const std::string text = literal ? std::string(pattern) : to_pcre2_pattern(source, pattern);
  const uint32_t options = PCRE2_UTF | (literal ? PCRE2_LITERAL : PCRE2_UCP);
  int error;
  PCRE2_SIZE offset;
  pcre2_code* code = pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options,
                                   &error, &offset, nullptr);
  if (code == nullptr) {
    throw_error(ErrorCode::kBadFile, "{}: split pattern does not compile: {} at byte {} of {}",
                source, pcre2_message(error), offset, text.substr(0, 100));
  }
  code_.reset(code);
  // Without a JIT (an unusual CPU or a hardened system) the interpreter gives the same matches.
  pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);
}

int SplitPattern::match(std::string_view subject, size_t start, State* state) const {
  const auto attempt = [&] {
    return pcre2_match(as_code(code_.get()), reinterpret_cast<PCRE2_SPTR>(subject.data()),
                       subject.size(), start, PCRE2_NO_UTF_CHECK,
                       as_match_data(state->match_data_.get()),
                       static_cast<pcre2_match_context*>(state->context_.get()));
  };
  int rc = attempt();
  if (rc == PCRE2_ERROR_JIT_STACKLIMIT && !state->jit_stack_) {
    // Long pieces backtrack beyond the 32 KiB that JIT code takes from the machine stack. The
    // mapping is only touched as far as it is used.
    constexpr size_t kMaxStackBytes = size_t{1} << 30;
    state->jit_stack_.reset(pcre2_jit_stack_create(64 << 10, kMaxStackBytes, nullptr));
    if (!state->jit_stack_) return rc;
    pcre2_jit_stack_assign(static_cast<pcre2_match_context*>(state->context_.get()), nullptr,
                           state->jit_stack_.get());
    rc = attempt();
  }
  return rc;
}

void SplitPattern::split(std::string_view subject, State* state,
                         std::vector<std::string_view>* pieces) const {
  const PCRE2_SIZE* span = pcre2_get_ovector_pointer(as_match_data(state->match_data_.get()));
  size_t done = 0, start = 0;
  while (start < subject.size()) {
    const int rc = match(subject, start, state);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      throw_error(ErrorCode::kOutOfResources,
                  "{}: split pattern fails on a text of {} bytes at byte {}: {}", source_,
                  subject.size(), start, pcre2_message(rc));
    }
    const size_t begin = span[0], end = span[1];
    if (begin > done && gaps_ == Gaps::kKeep) pieces->push_back(subject.substr(done, begin - done));
    if (end > begin) pieces->push_back(subject.substr(begin, end - begin));
    done = end;
    start = end;
    if (end == begin && end < subject.size()) start += first_utf8_unit(subject.substr(end)).bytes;
  }
  if (done < subject.size() && gaps_ == Gaps::kKeep) pieces->push_back(subject.substr(done));
}

}  // namespace kdt::text
