// Starts a thread, or says that the system has none to give.
#pragma once

#include <system_error>
#include <thread>
#include <utility>

#include "base/error.h"

namespace kdt {

// A std::thread, or std::jthread, with its own reason for failing: throws kOutOfResources.
template <typename Thread = std::thread, typename... Work>
Thread start_thread(Work&&... work) {
  try {
    return Thread(std::forward<Work>(work)...);
  } catch (const std::system_error& error) {
    throw_error(ErrorCode::kOutOfResources,
                "the system refused a thread, or the memory for its stack: {}",
                error.code().message());
  }
}

}  // namespace kdt
