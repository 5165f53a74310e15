// The engine: many requests in, a stream of token events out. See CONTRACT.md.
#pragma once

#include <memory>

#include "engine/executor.h"
#include "engine/request.h"

namespace kdt::engine {

// Loads a model (and drafter) and runs them on a thread of its own. submit() and the streams may be
// used from any thread. The destructor cancels what still runs and waits for the thread.
class Engine {
 public:
  // Throws the loader's errors. Blocks while loading.
  Engine(const Backend& backend, const EngineOptions& options);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Queues a request. Throws kInvalidArgument naming the field when the request can never run, and
  // kOutOfResources when it needs more pages than the whole pool has. A request that must wait for
  // pages is queued.
  std::shared_ptr<RequestStream> submit(Request request);

  int32_t context_len() const;
  int32_t vocab_size() const;
  int32_t draft_depth() const;  // L; 0 without a drafter
  size_t target_kv_bytes_per_token() const;
  size_t draft_kv_bytes_per_token() const;  // 0 without a drafter

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kdt::engine
