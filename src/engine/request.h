// What a client says and hears: requests, the events of their streams, the stream itself.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "ops/tree_accept.h"
#include "tree/tree.h"

namespace kdt::engine {

// How a request decodes. Greedy and sampled output is the same in every mode.
enum class DecodeMode {
  kPlain,  // one token a round
  kChain,  // DFlash: the drafter's best token per position
  kTree,   // DDTree with `budget` nodes
};

struct Request {
  std::vector<int32_t> prompt;  // 1 .. context - 1 tokens
  int32_t max_tokens = 256;     // >= 1; the context limit may end the run earlier
  DecodeMode mode = DecodeMode::kPlain;
  int32_t budget = 0;  // kTree: 1 .. EngineOptions::max_budget; the root not counted
  SamplingParams sampling;
  bool ignore_eos = false;
  bool want_trees = false;  // attach every round's tree to its event
};

// KV pages that the whole run of `request` may need. It goes no further than the context.
int32_t pages_needed(const Request& request, int64_t context_len, int32_t draft_depth);

enum class FinishReason { kNone, kStop, kLength, kCancelled, kError };

// One round's draft tree and the path the target accepted (node ids, root first).
struct RoundTree {
  tree::DraftTree tree;
  std::vector<int32_t> accepted;
};

// What happened since the last event. The last event of a stream has a reason; `error` says why for
// kError.
struct Event {
  std::vector<int32_t> tokens;    // new output tokens; a stop token is included
  int32_t acceptance_length = 0;  // of this round, root counted, before any truncation; 0 for
                                  // the event of the prefill
  std::shared_ptr<RoundTree> round_tree;  // with want_trees
  FinishReason reason = FinishReason::kNone;
  std::string error;
};

// Seconds, as the engine thread saw them.
struct RequestTiming {
  double prefill_s = 0.0;  // admission to first token
  double decode_s = 0.0;   // first token to finish
};

// One request's events. Any thread may read; the engine thread writes. Dropping the handle does not
// cancel: call cancel().
class RequestStream {
 public:
  // Waits for the next event and returns true; false once the last event was taken.
  bool next(Event* event);
  // Asks the engine to stop; the stream ends with kCancelled unless it ended before. Idempotent.
  void cancel();
  // Valid once next() has returned the last event.
  RequestTiming timing() const;

 private:
  friend class Scheduler;
  void push(Event event);
  void set_timing(const RequestTiming& timing);
  bool cancelled() const;

  mutable std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Event> events_;
  RequestTiming timing_;
  bool finished_ = false;  // the last event was pushed
  bool cancelled_ = false;
};

}  // namespace kdt::engine
