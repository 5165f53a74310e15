// Asserts that a call is refused with the right kind of error and words.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"

namespace kdt::test {

template <typename Call>
void expect_error(ErrorCode code, const std::string& part, Call call) {
  try {
    call();
    ADD_FAILURE() << "no error; expected one with: " << part;
  } catch (const Error& e) {
    EXPECT_EQ(static_cast<int>(e.code()), static_cast<int>(code)) << e.what();
    EXPECT_NE(std::string(e.what()).find(part), std::string::npos) << e.what();
  }
}

}  // namespace kdt::test
