// The project's one error type and its checks. Libraries throw kdt::Error; main() turns it into one
// line on stderr and an exit status. No library code aborts.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>

namespace kdt {

enum class ErrorCode {
  kInvalidArgument,  // the caller asked for something impossible
  kBadFile,          // bytes on disk are not what they should be
  kIo,               // the system refused (open, read, write, map)
  kUnsupported,      // well-formed, but outside what this engine does
  kOutOfResources,   // memory, pages
  kNumeric,          // NaN where numbers were needed
  kInternal,         // a broken invariant: a bug here
};

class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const { return code_; }

 private:
  ErrorCode code_;
};

// throw_error(ErrorCode::kBadFile, "{}: truncated at byte {}", path, n)
template <typename... Args>
[[noreturn]] void throw_error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  throw Error(code, fmt::format(format, std::forward<Args>(args)...));
}

namespace detail {
[[noreturn]] void check_failed(const char* file, int line, const char* expression);
[[noreturn]] void check_failed(const char* file, int line, const char* expression,
                               const std::string& values);
}  // namespace detail
}  // namespace kdt

// Internal invariants (kInternal, with file:line). What a user can cause gets throw_error.
#define KDT_CHECK(condition)                                                       \
  do {                                                                             \
    if (!(condition)) ::kdt::detail::check_failed(__FILE__, __LINE__, #condition); \
  } while (false)

#define KDT_CHECK_OP_(a, op, b)                                             \
  do {                                                                      \
    const auto& kdt_a_ = (a);                                               \
    const auto& kdt_b_ = (b);                                               \
    if (!(kdt_a_ op kdt_b_))                                                \
      ::kdt::detail::check_failed(__FILE__, __LINE__, #a " " #op " " #b,    \
                                  fmt::format("{} vs {}", kdt_a_, kdt_b_)); \
  } while (false)

#define KDT_CHECK_EQ(a, b) KDT_CHECK_OP_(a, ==, b)
#define KDT_CHECK_LE(a, b) KDT_CHECK_OP_(a, <=, b)
