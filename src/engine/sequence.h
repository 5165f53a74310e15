// The engine's view of one running request. The engine thread owns every field.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/request.h"

namespace kdt::engine {

using Clock = std::chrono::steady_clock;

struct Sequence {
  Request request;
  std::shared_ptr<RequestStream> stream;
  std::vector<int32_t> pages;  // of target and drafter cache alike; reserved for the whole run
  int32_t n_cached = 0;        // tokens whose KV is in the caches = position of the pending token
  int32_t pending = -1;        // the next round's root: known, not yet run through the target
  int32_t n_emitted = 0;       // output tokens sent
  int32_t token_limit = 0;     // output tokens allowed: max_tokens, cut at the context limit
  Clock::time_point admitted, first_token;

  int32_t prompt_len() const { return static_cast<int32_t>(request.prompt.size()); }
  bool in_prefill() const { return n_cached < prompt_len(); }
  bool speculative() const { return request.mode != DecodeMode::kPlain; }
};

}  // namespace kdt::engine
