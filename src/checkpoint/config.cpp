#include "checkpoint/config.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/config_parts.h"
#include "checkpoint/quantization_config.h"

namespace kdt::checkpoint {
namespace {

constexpr const char* kFlatArchitecture = "DeepseekV3ForCausalLM";
constexpr const char* kNestedArchitecture = "KimiK25ForConditionalGeneration";
constexpr int64_t kMaxExperts = 1024;            // as the routing op has it
constexpr int64_t kMaxExpertsInModel = 1 << 18;  // bounds the number of tensor names

std::string beside(const std::string& path, const char* name) {
  return (std::filesystem::path(path).parent_path() / name).string();
}

void parse_attention(const JsonObject& text, TargetConfig& config) {
  config.n_heads = text.integer("num_attention_heads", 1, kMaxWidth);
  if (text.integer_or("num_key_value_heads", config.n_heads, 1, kMaxWidth) != config.n_heads)
    text.fail("num_key_value_heads", fmt::format("num_attention_heads {}", config.n_heads));
  // A missing key would mean Hugging Face's default of 1536, which is never what a file omits.
  if (!text.has("q_lora_rank")) text.fail("q_lora_rank", "an integer, or null for a single q_proj");
  config.q_lora_rank = text.integer_or("q_lora_rank", 0, 1, kMaxWidth);
  config.kv_lora_rank = text.integer("kv_lora_rank", 1, kMaxHeadDim);
  config.qk_nope_head_dim = text.integer("qk_nope_head_dim", 1, kMaxHeadDim);
  config.qk_rope_head_dim = text.integer("qk_rope_head_dim", 2, kMaxHeadDim);
  if (config.qk_rope_head_dim % 2 != 0) text.fail("qk_rope_head_dim", "an even number");
  config.v_head_dim = text.integer("v_head_dim", 1, kMaxHeadDim);
  require_width(
      text, "num_attention_heads", config.n_heads, "head width",
      std::max(config.qk_nope_head_dim + std::max(config.qk_rope_head_dim, config.v_head_dim),
               config.kv_lora_rank + config.qk_rope_head_dim));
  text.require_default("rope_interleave", true);
}

void parse_experts(const JsonObject& text, TargetConfig& config) {
  config.intermediate_size = text.integer("intermediate_size", 1, kMaxWidth);
  config.moe_intermediate_size = text.integer("moe_intermediate_size", 1, kMaxWidth);
  config.n_routed_experts = text.integer("n_routed_experts", 1, kMaxExperts);
  config.n_shared_experts = text.integer_or("n_shared_experts", 0, 0, 1024);
  if (config.n_shared_experts * config.moe_intermediate_size > kMaxWidth)
    text.fail("n_shared_experts", fmt::format("n_shared_experts times moe_intermediate_size {} to "
                                              "be at most {}",
                                              config.moe_intermediate_size, kMaxWidth));
  if (config.n_routed_experts * config.n_layers > kMaxExpertsInModel)
    text.fail("n_routed_experts", fmt::format("n_routed_experts times num_hidden_layers {} to be "
                                              "at most {}",
                                              config.n_layers, kMaxExpertsInModel));
  config.first_k_dense_replace = text.integer("first_k_dense_replace", 0, config.n_layers);
  config.moe_layer_freq = text.integer_or("moe_layer_freq", 1, 1, kMaxLayers);
}

void parse_routing(const JsonObject& text, TargetConfig& config) {
  const int64_t experts = config.n_routed_experts;
  config.n_group = text.integer("n_group", 1, experts);
  if (experts % config.n_group != 0)
    text.fail("n_group", fmt::format("a divisor of n_routed_experts {}", experts));
  // A group is scored by the sum of its two best experts.
  if (config.n_group > 1 && experts / config.n_group < 2)
    text.fail("n_group", fmt::format("at most n_routed_experts / 2 = {}", experts / 2));
  config.topk_group = text.integer("topk_group", 1, config.n_group);
  config.n_experts_per_tok = text.integer("num_experts_per_tok", 1, experts);
  const int64_t eligible = experts / config.n_group * config.topk_group;
  if (config.n_experts_per_tok > eligible)
    text.fail("num_experts_per_tok",
              fmt::format("at most {}, the experts of topk_group {} of n_group {}", eligible,
                          config.topk_group, config.n_group));
  config.routed_scaling_factor =
      static_cast<float>(text.number_or("routed_scaling_factor", 1.0, 1e-6, 1e6));
  config.norm_topk_prob = text.boolean_or("norm_topk_prob", true);
  text.require_default("scoring_func", "sigmoid");
  text.require_default("topk_method", "noaux_tc");
}

// eos_token_id: an id, a list of ids, or null.
void add_stop_tokens(const JsonObject& object, int64_t vocab_size, std::vector<int32_t>& out) {
  const Json* value = object.find("eos_token_id");
  if (!value) return;
  for (const Json& id : value->is_array() ? *value : Json::array({*value})) {
    if (!id.is_number_unsigned() || id.get<uint64_t>() >= static_cast<uint64_t>(vocab_size))
      object.fail("eos_token_id",
                  fmt::format("a token id, or a list of them, from 0 to {}", vocab_size - 1));
    out.push_back(id.get<int32_t>());
  }
}

void parse_stop_tokens(const JsonObject& top, const JsonObject& text,
                       const std::string& generation_json, TargetConfig& config) {
  std::vector<int32_t>& stops = config.stop_token_ids;
  add_stop_tokens(top, config.vocab_size, stops);
  add_stop_tokens(text, config.vocab_size, stops);
  if (!generation_json.empty()) {
    const std::string path = beside(config.path, "generation_config.json");
    const Json document = parse_object(generation_json, path);
    add_stop_tokens(JsonObject(document, path), config.vocab_size, stops);
  }
  std::sort(stops.begin(), stops.end());
  stops.erase(std::unique(stops.begin(), stops.end()), stops.end());
}

// The object that holds the language model's keys; sets weight_prefix.
JsonObject find_text_config(const JsonObject& top, TargetConfig& config) {
  const std::string architecture = first_architecture(top);
  if (architecture == kFlatArchitecture) return top;
  if (architecture.starts_with("DFlash"))
    top.unsupported("architectures", "a target model: this is a drafter, for --draft");
  if (architecture != kNestedArchitecture)
    top.unsupported("architectures",
                    fmt::format("[\"{}\"] or [\"{}\"]", kFlatArchitecture, kNestedArchitecture));
  const JsonObject text = top.object("text_config");
  config.weight_prefix = "language_model.";
  const std::string inner = first_architecture(text);
  if (!inner.empty() && inner != kFlatArchitecture)
    text.unsupported("architectures", fmt::format("[\"{}\"]", kFlatArchitecture));
  return text;
}

}  // namespace

TargetConfig parse_target_config(const std::string& path, const std::string& config_json,
                                 const std::string& generation_json) {
  const Json document = parse_object(config_json, path);
  const JsonObject top(document, path);
  TargetConfig config;
  config.path = path;
  const JsonObject text = find_text_config(top, config);

  config.hidden_size = text.integer("hidden_size", 1, kMaxWidth);
  config.n_layers = text.integer("num_hidden_layers", 1, kMaxLayers);
  config.vocab_size = text.integer("vocab_size", 1, kMaxVocab);
  config.max_position_embeddings = text.integer("max_position_embeddings", 1, kMaxPositions);
  config.rms_norm_eps = static_cast<float>(text.number_or("rms_norm_eps", 1e-6, 0, 1));
  config.n_mtp_layers = text.integer_or("num_nextn_predict_layers", 0, 0, kMaxLayers);
  config.tie_word_embeddings =
      text.boolean_or("tie_word_embeddings", top.boolean_or("tie_word_embeddings", false));
  require_plain_block(text);
  parse_attention(text, config);
  parse_experts(text, config);
  parse_routing(text, config);
  config.rope = parse_rope(text, config.qk_rope_head_dim, config.max_position_embeddings);
  parse_stop_tokens(top, text, generation_json, config);
  auto quantization = text.object_or_none("quantization_config");
  if (!quantization) quantization = top.object_or_none("quantization_config");
  if (quantization) config.quantization = parse_quantization(*quantization);
  return config;
}

TargetConfig load_target_config(const std::string& dir) {
  const std::string path = (std::filesystem::path(dir) / "config.json").string();
  const std::string generation_path = beside(path, "generation_config.json");
  const std::string text = read_text_file(path, kMaxConfigBytes);
  return parse_target_config(
      path, text,
      file_exists(generation_path) ? read_text_file(generation_path, kMaxConfigBytes) : "");
}

}  // namespace kdt::checkpoint
