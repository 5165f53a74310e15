// The DFlash drafter (z-lab/dflash): a small Qwen3-style transformer that fills a block
// [root, MASK, ..., MASK] in one pass, attending to features of the target's committed tokens.
// It borrows the target's embedding and head.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/rope.h"
#include "model/target_model.h"

namespace kdt::draft {

// Two points on which public implementations disagree; checkpoints exist for either.
struct DraftConventions {
  checkpoint::DraftAmplitude amplitude = checkpoint::DraftAmplitude::kByRopeType;
  // Sliding layers run causally within the block (vLLM, SGLang) or, if false, like full layers
  // (the original code).
  bool causal_sliding_layers = true;
};

// D hidden, A heads, K kv heads, S head_dim.
struct DraftLayer {
  Buffer<float> input_norm, post_norm;  // [D]
  model::Linear q, k, v, o;             // [A*S, D], [K*S, D], [K*S, D], [D, A*S]
  Buffer<float> q_norm, k_norm;         // [S]
  model::Linear gate, up, down;         // [F, D], [F, D], [D, F]
};

// The drafter's context: K and V of committed tokens, fp32 [n_layers, n_pages, 64, K*S] each.
struct ContextCache {
  Buffer<float> k_pages, v_pages;
  int32_t n_pages = 0;
};

// Immutable after loading, but for its scratch: one caller at a time.
class DraftModel {
 public:
  DraftModel(const Backend& backend, const std::string& dir, const model::TargetModel& target,
             const DraftConventions& conventions, model::LoadProgress progress);

  // The target layers whose output the drafter reads, known before either is loaded. Throws when
  // the two do not fit.
  static std::vector<int64_t> capture_layers(const std::string& draft_dir,
                                             const std::string& target_dir);

  const checkpoint::DraftConfig& config() const { return config_; }
  int32_t depth() const { return static_cast<int32_t>(config_.block_size) - 1; }  // L
  int32_t feature_width() const;  // floats per token of the features
  size_t kv_bytes_per_token() const;

  // Allocates the scratch of extend_context() up to these rows and of draft() up to these requests.
  void plan(int32_t max_context_rows, int32_t max_requests);
  ContextCache make_cache(int32_t n_pages) const;

  // Appends the K and V of `n_rows` committed tokens: features [n_rows, feature_width], positions
  // [n_rows]. Request b of `rows` owns row_offset[b] .. + n_nodes[b] - 1 and starts at
  // prefix_len[b].
  void extend_context(const float* features, const int32_t* positions, const RowBatch& rows,
                      ContextCache* cache);

  // Drafts one block per request: block_tokens and block_positions [B, block_size] (root, then the
  // mask token); rows describes B requests of block_size rows. Returns logits [B, L, vocab].
  const float* draft(const int32_t* block_tokens, const int32_t* block_positions,
                     const RowBatch& rows, const ContextCache& cache);

 private:
  void run_layer(int64_t i, const int32_t* positions, const RowBatch& rows,
                 const ContextCache& cache);
  void layer_kv(const DraftLayer& layer, const float* x, const int32_t* positions, int32_t n_rows,
                float* k, float* v);
  void rotate(float* x, int32_t n_heads, const int32_t* positions, int32_t n_rows);

  const Backend& backend_;
  const model::TargetModel& target_;
  checkpoint::DraftConfig config_;
  DraftConventions conventions_;
  model::Linear fc_;           // [D, feature_width]
  Buffer<float> hidden_norm_;  // [D]
  Buffer<float> norm_;         // [D]
  Buffer<float> inv_freq_;     // [S / 2]
  float rope_amplitude_ = 1.0f;
  std::vector<DraftLayer> layers_;

  Buffer<float> x_, h_, q_, k_, v_, attention_, gate_, up_, context_k_, context_v_, logits_;
  Buffer<uint8_t> workspace_;
};

}  // namespace kdt::draft
