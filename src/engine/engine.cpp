#include "engine/engine.h"

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "base/error.h"
#include "base/thread.h"
#include "engine/scheduler.h"

namespace kdt::engine {
namespace {

const EngineOptions& checked(const EngineOptions& o) {
  const auto require = [](bool ok, const char* what, int64_t found) {
    if (!ok) throw_error(ErrorCode::kInvalidArgument, "{} (found {})", what, found);
  };
  require(o.max_batch >= 1 && o.max_batch <= 1024, "max_batch must be 1..1024", o.max_batch);
  require(o.max_budget >= 0 && o.max_budget <= kMaxBudget, "max_budget must be 0..1024",
          o.max_budget);
  require(o.prefill_chunk >= 1 && o.prefill_chunk <= 8192, "prefill_chunk must be 1..8192",
          o.prefill_chunk);
  require(o.kv_pages >= 0, "kv_pages must not be negative", o.kv_pages);
  return o;
}

}  // namespace

struct Engine::Impl {
  Impl(const Backend& backend, const EngineOptions& options)
      : options(checked(options)),
        executor(backend, options),
        scheduler(executor, options.max_batch),
        thread(start_thread([this] { run(); })) {}

  ~Impl() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    wake.notify_all();
    thread.join();
  }

  void run();
  void check(const Request& request) const;

  const EngineOptions options;
  Executor executor;
  Scheduler scheduler;  // the engine thread's, but for pages_needed()

  std::mutex mutex;
  std::condition_variable wake;
  std::vector<std::pair<Request, std::shared_ptr<RequestStream>>> inbox;  // guarded
  bool stopping = false;                                                  // guarded
  std::thread thread;  // last: starts when all else exists
};

void Engine::Impl::run() {
  while (true) {
    {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return stopping || !inbox.empty() || !scheduler.idle(); });
      for (auto& [request, stream] : inbox) scheduler.add(std::move(request), std::move(stream));
      inbox.clear();
      if (stopping) break;
    }
    try {
      scheduler.step();
    } catch (const std::exception& error) {
      scheduler.fail_running(error.what());
    }
  }
  scheduler.cancel_all();
}

void Engine::Impl::check(const Request& request) const {
  const int32_t vocab = executor.vocab_size();

  if (request.prompt.empty())
    throw_error(ErrorCode::kInvalidArgument, "the prompt has no tokens; give at least one");
  if (static_cast<int64_t>(request.prompt.size()) >= executor.context_len())
    throw_error(ErrorCode::kInvalidArgument,
                "the prompt has {} tokens; the context of {} leaves no room for an answer",
                request.prompt.size(), executor.context_len());
  for (const int32_t token : request.prompt)
    if (token < 0 || token >= vocab)
      throw_error(ErrorCode::kInvalidArgument, "prompt token id {} is outside the vocabulary 0..{}",
                  token, vocab - 1);
  if (request.max_tokens < 1)
    throw_error(ErrorCode::kInvalidArgument, "max_tokens must be at least 1 (found {})",
                request.max_tokens);
  if (request.mode != DecodeMode::kPlain && executor.draft_depth() == 0)
    throw_error(ErrorCode::kInvalidArgument, "speculative decoding needs a drafter");
  if (request.mode == DecodeMode::kTree &&
      (request.budget < 1 || request.budget > options.max_budget))
    throw_error(ErrorCode::kInvalidArgument, "the tree budget must be 1..{} (found {})",
                options.max_budget, request.budget);
  kdt::check(request.sampling);
  const int32_t pages = scheduler.pages_needed(request);
  if (pages > executor.n_pages())
    throw_error(ErrorCode::kOutOfResources,
                "the request may need {} KV pages of {} tokens, the cache has {}; lower max_tokens "
                "or give the cache more pages",
                pages, kPageTokens, executor.n_pages());
}

Engine::Engine(const Backend& backend, const EngineOptions& options)
    : impl_(std::make_unique<Impl>(backend, options)) {}

Engine::~Engine() = default;

std::shared_ptr<RequestStream> Engine::submit(Request request) {
  impl_->check(request);
  auto stream = std::make_shared<RequestStream>();
  {
    const std::lock_guard lock(impl_->mutex);
    impl_->inbox.emplace_back(std::move(request), stream);
  }
  impl_->wake.notify_all();
  return stream;
}

int32_t Engine::context_len() const {
  return impl_->executor.context_len();
}
int32_t Engine::vocab_size() const {
  return impl_->executor.vocab_size();
}
int32_t Engine::draft_depth() const {
  return impl_->executor.draft_depth();
}
size_t Engine::target_kv_bytes_per_token() const {
  return impl_->executor.target_kv_bytes_per_token();
}
size_t Engine::draft_kv_bytes_per_token() const {
  return impl_->executor.draft_kv_bytes_per_token();
}

}  // namespace kdt::engine
