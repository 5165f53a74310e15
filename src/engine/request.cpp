#include "engine/request.h"

#include <algorithm>

#include "base/rounding.h"
#include "ops/row_batch.h"

namespace kdt::engine {

int32_t pages_needed(const Request& request, int64_t context_len, int32_t draft_depth) {
  // The last round starts with fewer than max_tokens committed and adds up to L + 1.
  const int64_t longest =
      static_cast<int64_t>(request.prompt.size()) + request.max_tokens + draft_depth;
  return static_cast<int32_t>(ceil_div(std::min(longest, context_len), int64_t{kPageTokens}));
}

bool RequestStream::next(Event* event) {
  std::unique_lock lock(mutex_);
  ready_.wait(lock, [&] { return !events_.empty() || finished_; });
  if (events_.empty()) return false;
  *event = std::move(events_.front());
  events_.pop_front();
  return true;
}

void RequestStream::cancel() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
}

RequestTiming RequestStream::timing() const {
  const std::lock_guard lock(mutex_);
  return timing_;
}

void RequestStream::push(Event event) {
  {
    const std::lock_guard lock(mutex_);
    if (event.reason != FinishReason::kNone) finished_ = true;
    events_.push_back(std::move(event));
  }
  ready_.notify_all();
}

void RequestStream::set_timing(const RequestTiming& timing) {
  const std::lock_guard lock(mutex_);
  timing_ = timing;
}

bool RequestStream::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

}  // namespace kdt::engine
