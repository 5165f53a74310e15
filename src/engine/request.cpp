#include "engine/request.h"

namespace kdt::engine {

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
