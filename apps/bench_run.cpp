#include "apps/bench_run.h"

#include <fmt/format.h>

#include "apps/commands.h"
#include "apps/interrupt.h"
#include "apps/load_progress.h"
#include "base/error.h"
#include "checkpoint/config.h"

namespace kdt::apps {

std::vector<Ids> bench_prompts(const BenchOptions& o) {
  const auto tokenizer = load_tokenizer(o.prompts, o.model_dir);
  return encode_prompts(o.prompts, o.model_dir, tokenizer ? &*tokenizer : nullptr);
}

std::unique_ptr<engine::Engine> bench_engine(const Backend& backend, const BenchOptions& o,
                                             const std::vector<Ids>& prompts, int max_budget) {
  const int64_t context = checkpoint::load_target_config(o.model_dir).max_position_embeddings;
  return std::make_unique<engine::Engine>(
      backend, engine::EngineOptions{.model_dir = o.model_dir,
                                     .draft_dir = o.draft_dir,
                                     .max_batch = 1,
                                     .max_budget = max_budget,
                                     .kv_pages = pages_for(prompts, o.max_tokens, 1, context),
                                     .progress = load_progress()});
}

void run_prompt(engine::Engine& engine, const Ids& prompt, engine::DecodeMode mode, int budget,
                int max_tokens, Outcome* outcome) {
  const auto stream =
      engine.submit({.prompt = prompt, .max_tokens = max_tokens, .mode = mode, .budget = budget});
  cancel_on_interrupt({stream});
  engine::Event event;
  Ids tokens;
  while (stream->next(&event)) {
    tokens.insert(tokens.end(), event.tokens.begin(), event.tokens.end());
    outcome->accepted += event.acceptance_length;
    outcome->n_rounds += event.acceptance_length > 0;
  }
  if (event.reason == engine::FinishReason::kError)
    throw_error(ErrorCode::kNumeric, "decoding failed: {}", event.error);
  if (event.reason == engine::FinishReason::kCancelled) throw Interrupted();
  outcome->seconds += stream->timing().decode_s;
  outcome->n_tokens += static_cast<int64_t>(tokens.size()) - 1;
  outcome->tokens.push_back(std::move(tokens));
}

std::string bench_subject(const BenchOptions& o, size_t n_prompts) {
  return fmt::format("model: {}; drafter: {}; {} prompt{}, at most {} tokens, greedy, batch 1",
                     o.model_dir, o.draft_dir.empty() ? "none" : o.draft_dir, n_prompts,
                     n_prompts == 1 ? "" : "s", o.max_tokens);
}

}  // namespace kdt::apps
