// Starts a thread, or says that the system has none to give.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace kdt {

// std::thread with its own reason for failing: throws kOutOfResources.
template <typename... Work>
std::thread start_thread(Work&&... work) {
  try {
    return std::thread(std::forward<Work>(work)...);
  } catch (const std::system_error& error) {
    throw_error(ErrorCode::kOutOfResources,
                "the system refused a thread, or the memory for its stack: {}",
                error.code().message());
  }
}

}  // namespace kdt
