#include "model/target_weights.h"

#include <fmt/format.h>

#include "checkpoint/rope.h"

namespace kdt::model {
namespace {

using checkpoint::TargetConfig;

void load_attention(WeightLoader& loader, const TargetConfig& c, const std::string& prefix,
                    TargetLayer* layer) {
  const int64_t q_rows = c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
  if (c.q_lora_rank > 0) {
    layer->q_a = loader.linear(prefix + "q_a_proj", c.q_lora_rank, c.hidden_size);
    layer->q_a_norm = loader.vector(prefix + "q_a_layernorm.weight", c.q_lora_rank);
    layer->q_b = loader.linear(prefix + "q_b_proj", q_rows, c.q_lora_rank);
  } else {
    layer->q_b = loader.linear(prefix + "q_proj", q_rows, c.hidden_size);
  }
  layer->kv_a = loader.linear(prefix + "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim,
                              c.hidden_size);
  layer->kv_a_norm = loader.vector(prefix + "kv_a_layernorm.weight", c.kv_lora_rank);
  loader.kv_b(prefix + "kv_b_proj", c, &layer->w_uk, &layer->w_uv);
  layer->o = loader.linear(prefix + "o_proj", c.hidden_size, c.n_heads * c.v_head_dim);
}

void load_ffn(WeightLoader& loader, const std::string& prefix, int64_t hidden, int64_t intermediate,
              TargetLayer* layer) {
  layer->intermediate = intermediate;
  if (intermediate == 0) return;
  layer->gate = loader.linear(prefix + "gate_proj", intermediate, hidden);
  layer->up = loader.linear(prefix + "up_proj", intermediate, hidden);
  layer->down = loader.linear(prefix + "down_proj", hidden, intermediate);
}

Linear load_experts(WeightLoader& loader, const TargetConfig& c, const std::string& prefix,
                    const char* projection, int64_t out_features, int64_t in_features) {
  std::vector<std::string> modules;
  for (int64_t e = 0; e < c.n_routed_experts; ++e)
    modules.push_back(fmt::format("{}experts.{}.{}", prefix, e, projection));
  return loader.grouped(modules, out_features, in_features);
}

TargetLayer load_layer(WeightLoader& loader, const TargetConfig& c, int64_t index) {
  const std::string prefix = fmt::format("{}model.layers.{}.", c.weight_prefix, index);
  TargetLayer layer;
  layer.input_norm = loader.vector(prefix + "input_layernorm.weight", c.hidden_size);
  layer.post_norm = loader.vector(prefix + "post_attention_layernorm.weight", c.hidden_size);
  load_attention(loader, c, prefix + "self_attn.", &layer);

  layer.is_moe = checkpoint::is_moe_layer(c, index);
  if (!layer.is_moe) {
    load_ffn(loader, prefix + "mlp.", c.hidden_size, c.intermediate_size, &layer);
    return layer;
  }
  const std::string mlp = prefix + "mlp.";
  const int64_t moe = c.moe_intermediate_size;
  layer.router = loader.linear(mlp + "gate", c.n_routed_experts, c.hidden_size);
  layer.router_bias = loader.vector(mlp + "gate.e_score_correction_bias", c.n_routed_experts);
  layer.expert_gate = load_experts(loader, c, mlp, "gate_proj", moe, c.hidden_size);
  layer.expert_up = load_experts(loader, c, mlp, "up_proj", moe, c.hidden_size);
  layer.expert_down = load_experts(loader, c, mlp, "down_proj", c.hidden_size, moe);
  load_ffn(loader, mlp + "shared_experts.", c.hidden_size, moe * c.n_shared_experts, &layer);
  return layer;
}

}  // namespace

TargetWeights load_target_weights(const Backend& backend, const checkpoint::Checkpoint& checkpoint,
                                  const TargetConfig& c, LoadProgress progress) {
  WeightLoader loader(backend, checkpoint, c.quantization, std::move(progress));
  const std::string model = c.weight_prefix + "model.";
  const std::string embedding = model + "embed_tokens";
  TargetWeights weights;
  weights.lm_head = loader.linear(c.tie_word_embeddings ? embedding : c.weight_prefix + "lm_head",
                                  c.vocab_size, c.hidden_size);
  weights.embedding =
      loader.table(embedding + ".weight", c.vocab_size, c.hidden_size, &weights.embedding_dtype);
  weights.norm = loader.vector(model + "norm.weight", c.hidden_size);
  for (int64_t i = 0; i < c.n_layers; ++i) weights.layers.push_back(load_layer(loader, c, i));
  loader.finish();

  const std::vector<float> inv_freq = checkpoint::inv_freq(c.rope);
  weights.inv_freq = Buffer<float>(backend, inv_freq.size());
  backend.copy_in(weights.inv_freq.data(), inv_freq.data(), inv_freq.size() * sizeof(float), {});
  return weights;
}

}  // namespace kdt::model
