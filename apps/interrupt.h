// Ctrl-C that stops cleanly: the first one cancels the running requests, a second one, or one while
// nothing runs yet, ends the process.
#pragma once

#include <memory>
#include <vector>

#include "engine/request.h"

namespace kdt::apps {

// Call once, before any thread starts: SIGINT and SIGTERM go to a thread that waits for them,
// except one that the parent process had ignored, which stays so.
void install_interrupt_handler();

// The streams to cancel; replaces the earlier ones.
void cancel_on_interrupt(std::vector<std::shared_ptr<engine::RequestStream>> streams);

inline constexpr int kInterruptedStatus = 130;

}  // namespace kdt::apps
