// A progress line on stderr while a checkpoint loads, where that takes a moment; nothing unless
// stderr is a terminal.
#pragma once

#include <unistd.h>

#include <chrono>
#include <cstdio>

#include "engine/executor.h"

namespace kdt::apps {

inline model::LoadProgress load_progress() {
  using Clock = std::chrono::steady_clock;
  if (!::isatty(STDERR_FILENO)) return {};
  return [start = Clock::now(), last = -1](size_t done, size_t total) mutable {
    const int percent = total ? static_cast<int>(done * 100 / total) : 100;
    if (percent == last || Clock::now() - start < std::chrono::milliseconds(500)) return;
    last = percent;
    std::fprintf(stderr, "\rloading %3d%%%s", percent, percent == 100 ? "\r\033[K" : "");
  };
}

}  // namespace kdt::apps
