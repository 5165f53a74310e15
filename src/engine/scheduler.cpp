#include "engine/scheduler.h"

#include <algorithm>

namespace kdt::engine {
namespace {

double seconds(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

Scheduler::Scheduler(Executor& executor, int32_t max_batch)
    : executor_(executor), max_batch_(max_batch), pool_(executor.n_pages()) {}

// The token at position context_len does not exist.
int32_t Scheduler::token_limit(const Request& request) const {
  return std::min(request.max_tokens,
                  executor_.context_len() - static_cast<int32_t>(request.prompt.size()));
}

int32_t Scheduler::pages_needed(const Request& request) const {
  return engine::pages_needed(request, executor_.context_len(), executor_.draft_depth());
}

void Scheduler::add(Request request, std::shared_ptr<RequestStream> stream) {
  auto sequence = std::make_unique<Sequence>();
  sequence->request = std::move(request);
  sequence->stream = std::move(stream);
  sequence->token_limit = token_limit(sequence->request);
  waiting_.push_back(std::move(sequence));
}

void Scheduler::step() {
  drop_cancelled();
  admit();
  prefill();
  decode();
}

void Scheduler::drop_cancelled() {
  const Event last{.reason = FinishReason::kCancelled};
  std::erase_if(waiting_, [&](const auto& sequence) {
    if (!sequence->stream->cancelled()) return false;
    finish(sequence.get(), last);
    return true;
  });
  std::vector<Sequence*> ended;
  for (const auto& sequence : running_)
    if (sequence->stream->cancelled()) ended.push_back(sequence.get());
  for (Sequence* sequence : ended) finish(sequence, last);
}

void Scheduler::admit() {
  while (!waiting_.empty() && static_cast<int32_t>(running_.size()) < max_batch_) {
    Sequence& next = *waiting_.front();
    if (!pool_.reserve(pages_needed(next.request), &next.pages)) return;
    next.admitted = Clock::now();
    running_.push_back(std::move(waiting_.front()));
    waiting_.pop_front();
  }
  // The ops want speculative sequences first.
  std::stable_partition(running_.begin(), running_.end(),
                        [](const auto& sequence) { return sequence->speculative(); });
}

void Scheduler::prefill() {
  std::vector<Sequence*> sequences;
  std::vector<int32_t> counts;
  int32_t room = executor_.prefill_chunk();
  for (const auto& sequence : running_) {
    if (!sequence->in_prefill() || room == 0) continue;
    const int32_t count = std::min(room, sequence->prompt_len() - sequence->n_cached);
    sequences.push_back(sequence.get());
    counts.push_back(count);
    room -= count;
  }
  if (sequences.empty()) return;
  std::vector<StepResult> results = executor_.prefill(sequences, counts);
  for (size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i]->in_prefill()) continue;
    sequences[i]->first_token = Clock::now();
    deliver(sequences[i], std::move(results[i]));
  }
}

void Scheduler::decode() {
  std::vector<Sequence*> sequences;
  for (const auto& sequence : running_)
    if (!sequence->in_prefill()) sequences.push_back(sequence.get());
  if (sequences.empty()) return;
  std::vector<StepResult> results = executor_.round(sequences);
  for (size_t i = 0; i < sequences.size(); ++i) deliver(sequences[i], std::move(results[i]));
}

bool Scheduler::is_stop(int32_t token) const {
  const std::vector<int32_t>& stops = executor_.stop_tokens();
  return std::binary_search(stops.begin(), stops.end(), token);
}

// Sends what a step found out: tokens up to a stop token or the limit, and the ending if it ends.
void Scheduler::deliver(Sequence* sequence, StepResult result) {
  Event event{.acceptance_length = result.acceptance_length,
              .round_tree = std::move(result.round_tree),
              .error = std::move(result.error)};
  if (!event.error.empty()) {
    event.reason = FinishReason::kError;
    return finish(sequence, std::move(event));
  }
  for (const int32_t token : result.tokens) {
    if (sequence->n_emitted == sequence->token_limit) break;
    event.tokens.push_back(token);
    ++sequence->n_emitted;
    if (!sequence->request.ignore_eos && is_stop(token)) {
      event.reason = FinishReason::kStop;
      break;
    }
  }
  // A round runs while fewer tokens than the limit are committed, the pending one not counted.
  const int32_t committed = sequence->n_cached - sequence->prompt_len();
  if (event.reason == FinishReason::kNone && committed >= sequence->token_limit)
    event.reason = FinishReason::kLength;
  if (event.reason != FinishReason::kNone) return finish(sequence, std::move(event));
  sequence->stream->push(std::move(event));
}

// Frees the sequence's pages and forgets it, then tells its client.
void Scheduler::finish(Sequence* sequence, Event event) {
  const Clock::time_point now = Clock::now();
  RequestTiming timing;
  if (sequence->first_token != Clock::time_point{}) {
    timing.prefill_s = seconds(sequence->admitted, sequence->first_token);
    timing.decode_s = seconds(sequence->first_token, now);
  }
  const std::shared_ptr<RequestStream> stream = sequence->stream;
  pool_.release(&sequence->pages);
  std::erase_if(running_, [&](const auto& s) { return s.get() == sequence; });
  stream->set_timing(timing);
  stream->push(std::move(event));
}

void Scheduler::finish_running(const Event& event) {
  while (!running_.empty()) finish(running_.back().get(), event);
}

void Scheduler::fail_running(const std::string& message) {
  finish_running({.reason = FinishReason::kError, .error = message});
}

void Scheduler::cancel_all() {
  const Event last{.reason = FinishReason::kCancelled};
  for (auto& sequence : waiting_) finish(sequence.get(), last);
  waiting_.clear();
  finish_running(last);
}

}  // namespace kdt::engine
