// What the math needs to know of a Hugging Face config.json: the target (DeepSeek-V3 / Kimi K2
// family) and the DFlash drafter. Every value is validated here, so the code above may trust it:
// sizes are positive and bounded, products fit, ids lie inside the vocabulary.
//
// Errors: kIo (no file), kBadFile (a key is missing, mistyped or contradicts another),
// kUnsupported (a well-formed model this engine does not run). Each names file, key, value and
// what was expected. Plain data; functions are thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kdt::checkpoint {

struct RopeConfig {
  // kDeepseekYarn has the frequencies of kYarn; drafters differ in the amplitude (see rope.h).
  enum class Scaling : uint8_t { kNone, kYarn, kDeepseekYarn };

  double theta = 10000.0;
  int64_t dim = 0;  // rotated channels, even
  Scaling scaling = Scaling::kNone;
  // The rest only with scaling; defaults are those of the Hugging Face code.
  double factor = 1.0;
  int64_t original_max_position_embeddings = 0;
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 1.0;
  double mscale_all_dim = 0.0;
  std::optional<double> attention_factor;
};

struct QuantizationConfig {
  enum class Format : uint8_t { kNone, kInt4Pack, kFp8Block };

  Format format = Format::kNone;
  int64_t group_size = 0;  // kInt4Pack: columns that share a scale, a multiple of 8
  int64_t block_size = 0;  // kFp8Block: edge of the square that shares a scale, 128
};

struct TargetConfig {
  std::string path;           // of config.json, for messages
  std::string weight_prefix;  // "" or "language_model."

  int64_t hidden_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t q_lora_rank = 0;  // 0: one q_proj instead of q_a_proj, q_a_layernorm, q_b_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;

  int64_t n_routed_experts = 0;
  int64_t n_experts_per_tok = 0;
  int64_t n_shared_experts = 0;
  int64_t moe_intermediate_size = 0;
  int64_t intermediate_size = 0;
  int64_t first_k_dense_replace = 0;
  int64_t moe_layer_freq = 1;
  int64_t n_group = 1;
  int64_t topk_group = 1;
  float routed_scaling_factor = 1.0f;
  bool norm_topk_prob = true;

  int64_t vocab_size = 0;
  float rms_norm_eps = 1e-6f;
  int64_t max_position_embeddings = 0;
  bool tie_word_embeddings = false;  // lm_head.weight is embed_tokens.weight
  int64_t n_mtp_layers = 0;          // stored after the last layer, never loaded

  RopeConfig rope;
  QuantizationConfig quantization;

  // eos_token_id of config.json (top level and text_config) and generation_config.json, sorted.
  std::vector<int32_t> stop_token_ids;
};

struct DraftConfig {
  std::string path;  // of config.json, for messages

  int64_t hidden_size = 0;
  int64_t n_layers = 0;
  int64_t n_heads = 0;
  int64_t n_kv_heads = 0;  // divides n_heads
  int64_t head_dim = 0;
  int64_t intermediate_size = 0;
  int64_t vocab_size = 0;
  float rms_norm_eps = 1e-6f;
  int64_t max_position_embeddings = 0;
  RopeConfig rope;

  int64_t block_size = 0;                 // root + masks, 2..32
  int64_t n_target_layers = 0;            // layers of the target it was trained for
  std::vector<int64_t> target_layer_ids;  // features: residual stream after these target layers
  int32_t mask_token_id = 0;
  std::vector<uint8_t> layer_is_sliding;  // [n_layers]
  int64_t sliding_window = 0;             // query p sees keys p - window + 1 .. p; 0: no such layer
};

// DIR/config.json, with the stop tokens of DIR/generation_config.json where that exists.
TargetConfig load_target_config(const std::string& dir);

// DIR/config.json of a DFlash drafter. DFlash 2 is refused.
DraftConfig load_draft_config(const std::string& dir);

// The same from text, for tests and fuzzing; `path` only names it in errors. An empty
// `generation_json` means no such file.
TargetConfig parse_target_config(const std::string& path, const std::string& config_json,
                                 const std::string& generation_json = "");
DraftConfig parse_draft_config(const std::string& path, const std::string& config_json);

// Whether config.json of `dir` is a drafter's. Errors only when it cannot be read.
bool is_draft_dir(const std::string& dir);

// Throws kInvalidArgument unless the drafter fits the target: hidden size, vocabulary, layers.
void check_pair(const TargetConfig& target, const DraftConfig& draft);

inline bool is_moe_layer(const TargetConfig& config, int64_t layer) {
  return layer >= config.first_k_dense_replace && layer % config.moe_layer_freq == 0;
}

}  // namespace kdt::checkpoint
