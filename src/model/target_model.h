// The target: one forward pass over tree nodes (or a prefill chunk) of many requests.
// DeepSeek-V3 (arXiv 2412.19437) with absorbed MLA; all activations fp32.
#pragma once

#include <string>
#include <vector>

#include "model/target_weights.h"
#include "ops/verify_attention.h"

namespace kdt::model {

// The rows to run. All arrays in backend memory.
struct TargetBatch {
  RowBatch rows;
  const int32_t* tokens = nullptr;      // [R]
  const int32_t* positions = nullptr;   // [R]
  const uint64_t* ancestors = nullptr;  // [R, n_words], or null: causal chains
  int32_t n_words = 0;
};

// The paged latent cache of all layers, fp32 [n_layers, n_pages, 64, width].
struct LatentCache {
  Buffer<float> pages;
  int32_t n_pages = 0;
};

// The largest passes that scratch is allocated for.
struct TargetPlan {
  int32_t max_rows = 0;        // R
  int32_t max_logit_rows = 0;  // rows of logits()
  int32_t max_requests = 0;    // B
  int32_t max_nodes = 1;       // tree nodes of one request
};

// Immutable after loading, but for its scratch: one caller at a time.
class TargetModel {
 public:
  // `capture` lists the layers whose output the drafter reads. Throws what the loaders throw.
  TargetModel(const Backend& backend, const std::string& dir, std::vector<int64_t> capture,
              LoadProgress progress);

  const checkpoint::TargetConfig& config() const { return config_; }
  const TargetWeights& weights() const { return weights_; }
  int32_t kv_width() const;           // floats per token and layer: kv_lora_rank + rope
  size_t kv_bytes_per_token() const;  // over all layers

  // Allocates the scratch of forward passes and logits up to these sizes.
  void plan(const TargetPlan& plan);
  LatentCache make_cache(int32_t n_pages) const;

  // Runs R rows. Afterwards tail() holds the latent KV of the rows [n_layers, max_rows, width],
  // features() the captured layers [n_capture, max_rows, hidden]. The cache is only read.
  void forward(const TargetBatch& batch, const LatentCache& cache);
  // Logits [n_rows, vocab] of the `n_rows` consecutive rows from `first_row` of the last forward,
  // written to row `to_row` of logits().
  void compute_logits(int32_t first_row, int32_t n_rows, int32_t to_row);

  const float* tail() const { return tail_.data(); }
  const float* features() const { return features_.data(); }
  const float* logits() const { return logits_.data(); }
  int32_t max_rows() const { return max_rows_; }

 private:
  VerifyAttentionParams attention_params(int64_t index, const TargetBatch& batch,
                                         const LatentCache& cache);
  void attention(const TargetLayer& layer, int64_t index, const TargetBatch& batch,
                 const LatentCache& cache);
  void ffn(const TargetLayer& layer, int32_t n_rows);

  const Backend& backend_;
  checkpoint::TargetConfig config_;
  std::vector<int64_t> capture_;
  TargetWeights weights_;
  float scale_ = 0.0f;
  float rope_amplitude_ = 1.0f;

  int32_t max_rows_ = 0;
  Buffer<float> x_, norm_, q_a_, q_, q_latent_, attention_, values_, gate_, up_;
  Buffer<float> router_logits_, router_weights_, tail_, features_, logits_, head_norm_;
  Buffer<int32_t> router_ids_;
  // Holds the plan of a forward pass: not in workspace_, which a layer's experts overwrite.
  Buffer<uint8_t> attention_workspace_;
  Buffer<uint8_t> workspace_;
};

}  // namespace kdt::model
