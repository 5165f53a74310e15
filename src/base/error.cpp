#include "base/error.h"

namespace kdt::detail {

void check_failed(const char* file, int line, const char* expression) {
  throw_error(ErrorCode::kInternal, "internal error: {}:{}: {}", file, line, expression);
}

void check_failed(const char* file, int line, const char* expression, const std::string& values) {
  throw_error(ErrorCode::kInternal, "internal error: {}:{}: {} ({})", file, line, expression,
              values);
}

}  // namespace kdt::detail
