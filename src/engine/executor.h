// Runs the models for the scheduler: prefill chunks and decode rounds over many sequences.
// Owns weights, caches and every buffer of a round; nothing here allocates in steady state.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "draft/draft_model.h"
#include "engine/sequence.h"
#include "model/target_model.h"
#include "ops/buffer.h"

namespace kdt::engine {

struct EngineOptions {
  std::string model_dir;
  std::string draft_dir;        // empty: plain decoding only
  int32_t max_batch = 8;        // requests that run at once
  int32_t max_budget = 64;      // largest tree budget a request may ask for
  int32_t prefill_chunk = 128;  // prompt tokens per forward pass
  int32_t context_len = 0;      // 0: the model's max_position_embeddings
  int32_t kv_pages = 0;         // 64-token pages at most; 0: max_batch full contexts
  draft::DraftConventions draft_conventions;
  model::LoadProgress progress;
};

// The outcome of one sequence in a prefill chunk or a round.
struct StepResult {
  std::vector<int32_t> tokens;  // newly known: accepted draft tokens, then the bonus; empty while
                                // the prompt is not finished
  int32_t acceptance_length = 0;
  std::shared_ptr<RoundTree> round_tree;
  std::string error;  // not empty: the request failed and must end
};

// Not thread-safe: the engine thread's.
class Executor {
 public:
  Executor(const Backend& backend, const EngineOptions& options);

  int32_t vocab_size() const { return vocab_; }
  const std::vector<int32_t>& stop_tokens() const { return target_.config().stop_token_ids; }
  int32_t context_len() const { return context_len_; }
  int32_t n_pages() const { return cache_.n_pages; }
  int32_t prefill_chunk() const { return options_.prefill_chunk; }
  int32_t draft_depth() const { return draft_ ? draft_->depth() : 0; }  // L
  size_t target_kv_bytes_per_token() const { return target_.kv_bytes_per_token(); }
  size_t draft_kv_bytes_per_token() const { return draft_ ? draft_->kv_bytes_per_token() : 0; }

  // Runs the next counts[i] prompt tokens of sequences[i], advances n_cached, and where the prompt
  // ends draws the first token. At most prefill_chunk tokens in all.
  std::vector<StepResult> prefill(std::span<Sequence* const> sequences,
                                  std::span<const int32_t> counts);

  // One decode round: draft, build, verify, accept, commit; advances n_cached and pending.
  std::vector<StepResult> round(std::span<Sequence* const> sequences);

 private:
  void plan();
  // Describes request b to the ops: its rows, cache length and pages.
  void set_request(int32_t b, const Sequence& sequence, int32_t row_offset, int32_t n_nodes);
  RowBatch upload_rows(int32_t n_requests, int32_t n_rows);
  // Steps of a round; sequences come speculative first.
  void draft(std::span<Sequence* const> speculative);
  int32_t build_trees(std::span<Sequence* const> sequences, int32_t n_speculative);
  void accept(std::span<Sequence* const> sequences, int32_t n_rows);
  void commit(std::span<Sequence* const> sequences, const RowBatch& rows, const int32_t* accepted);
  std::shared_ptr<RoundTree> snapshot(int32_t b);

  const Backend& backend_;
  EngineOptions options_;
  model::TargetModel target_;
  std::optional<draft::DraftModel> draft_;
  int32_t vocab_ = 0;
  int32_t context_len_ = 0;
  int32_t max_blocks_ = 0;
  model::LatentCache cache_;
  draft::ContextCache context_;

  // Per request [max_batch].
  Mirror<int32_t> row_offset_, n_nodes_, prefix_len_, block_table_;
  Mirror<int32_t> budget_, max_depth_, max_rank_, root_;
  Mirror<int32_t> accepted_, n_accepted_, bonus_, status_, draft_status_, feature_offset_;
  Mirror<SamplingParams> sampling_;
  // Per row [max_rows].
  Mirror<int32_t> tokens_, positions_, parents_, depths_, first_child_, next_sibling_;
  Mirror<int32_t> context_positions_, block_tokens_, block_positions_;
  Mirror<double> scores_;
  Buffer<uint64_t> ancestors_;
  Buffer<float> logp_, features_;
  Buffer<int32_t> ids_;
  Buffer<uint8_t> workspace_;
  int32_t n_words_ = 1;
  int32_t candidates_ = 1;  // K of the last draft
  int32_t max_accepted_ = 1;
};

}  // namespace kdt::engine
