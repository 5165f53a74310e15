// Decides what runs next: admission, prefill, rounds, endings. The engine thread owns it.
#pragma once

#include <deque>
#include <memory>
#include <vector>

#include "engine/executor.h"
#include "kv/page_pool.h"

namespace kdt::engine {

// Policy: requests are admitted first come, first served, when a slot and all the pages of their
// whole run are free; so an admitted request never runs out of pages. Each step prefills at most
// one chunk, then runs one round over all that decode.
class Scheduler {
 public:
  Scheduler(Executor& executor, int32_t max_batch);

  int32_t pages_needed(const Request& request) const;

  void add(Request request, std::shared_ptr<RequestStream> stream);
  bool idle() const { return waiting_.empty() && running_.empty(); }
  void step();
  void fail_running(const std::string& message);
  void cancel_all();

 private:
  void drop_cancelled();
  void admit();
  void prefill();
  void decode();
  void deliver(Sequence* sequence, StepResult result);
  void finish(Sequence* sequence, Event event);
  void finish_running(const Event& event);
  bool is_stop(int32_t token) const;
  int32_t token_limit(const Request& request) const;

  Executor& executor_;
  int32_t max_batch_;
  kv::PagePool pool_;
  std::deque<std::unique_ptr<Sequence>> waiting_;
  std::vector<std::unique_ptr<Sequence>> running_;
};

}  // namespace kdt::engine
