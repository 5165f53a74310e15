// What tests ask about the errors of a call.
#pragma once

#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "base/error.h"

namespace kdt::test {

// The message of the error that `call` throws, always one line and never a broken invariant, of
// this kind if one is given; "no error" when it throws none.
template <typename Call>
std::string message_of(Call call, std::optional<ErrorCode> code = {}) {
  try {
    call();
  } catch (const Error& e) {
    EXPECT_NE(e.code(), ErrorCode::kInternal) << e.what();
    EXPECT_EQ(e.code(), code.value_or(e.code())) << e.what();
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
    return e.what();
  }
  return "no error";
}

inline void expect_has(const std::string& text, const std::string& part) {
  EXPECT_NE(text.find(part), std::string::npos) << '"' << text << "\" lacks \"" << part << '"';
}

template <typename Call>
void expect_error(ErrorCode code, const std::string& part, Call call) {
  expect_has(message_of(call, code), part);
}

}  // namespace kdt::test
