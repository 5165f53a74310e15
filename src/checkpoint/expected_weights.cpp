#include "checkpoint/expected_weights.h"

#include <fmt/format.h>

namespace kdt::checkpoint {
namespace {

// Names relative to a module path.
class Emitter {
 public:
  Emitter(std::string path, const WeightVisitor& visit) : path_(std::move(path)), visit_(visit) {}

  Emitter at(const std::string& child) const { return {path_ + child + ".", visit_}; }
  void linear(WeightKind kind, const std::string& module, int64_t out, int64_t in) const {
    visit_({kind, true, path_ + module, {out, in}});
  }
  void tensor(WeightKind kind, const std::string& name, std::vector<int64_t> shape) const {
    visit_({kind, false, path_ + name, std::move(shape)});
  }
  void norm(const std::string& module, int64_t width) const {
    tensor(WeightKind::kNorms, module + ".weight", {width});
  }
  void mlp(WeightKind kind, int64_t hidden, int64_t inner) const {
    linear(kind, "gate_proj", inner, hidden);
    linear(kind, "up_proj", inner, hidden);
    linear(kind, "down_proj", hidden, inner);
  }

 private:
  std::string path_;
  const WeightVisitor& visit_;
};

void visit_mla(const TargetConfig& c, const Emitter& attention) {
  const auto kind = WeightKind::kAttention;
  const int64_t q_width = c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
  if (c.q_lora_rank == 0) {
    attention.linear(kind, "q_proj", q_width, c.hidden_size);
  } else {
    attention.linear(kind, "q_a_proj", c.q_lora_rank, c.hidden_size);
    attention.norm("q_a_layernorm", c.q_lora_rank);
    attention.linear(kind, "q_b_proj", q_width, c.q_lora_rank);
  }
  attention.linear(kind, "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim, c.hidden_size);
  attention.norm("kv_a_layernorm", c.kv_lora_rank);
  attention.linear(kind, "kv_b_proj", c.n_heads * (c.qk_nope_head_dim + c.v_head_dim),
                   c.kv_lora_rank);
  attention.linear(kind, "o_proj", c.hidden_size, c.n_heads * c.v_head_dim);
}

void visit_moe(const TargetConfig& c, const Emitter& mlp) {
  mlp.tensor(WeightKind::kRouter, "gate.weight", {c.n_routed_experts, c.hidden_size});
  mlp.tensor(WeightKind::kRouter, "gate.e_score_correction_bias", {c.n_routed_experts});
  for (int64_t expert = 0; expert < c.n_routed_experts; ++expert)
    mlp.at(fmt::format("experts.{}", expert))
        .mlp(WeightKind::kRoutedExperts, c.hidden_size, c.moe_intermediate_size);
  if (c.n_shared_experts > 0)
    mlp.at("shared_experts")
        .mlp(WeightKind::kSharedExperts, c.hidden_size,
             c.n_shared_experts * c.moe_intermediate_size);
}

}  // namespace

void visit_expected_weights(const TargetConfig& c, const WeightVisitor& visit) {
  const Emitter root(c.weight_prefix, visit);
  const Emitter model = root.at("model");
  model.tensor(WeightKind::kEmbedding, "embed_tokens.weight", {c.vocab_size, c.hidden_size});
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const Emitter layer = model.at(fmt::format("layers.{}", i));
    layer.norm("input_layernorm", c.hidden_size);
    layer.norm("post_attention_layernorm", c.hidden_size);
    visit_mla(c, layer.at("self_attn"));
    if (is_moe_layer(c, i))
      visit_moe(c, layer.at("mlp"));
    else
      layer.at("mlp").mlp(WeightKind::kDenseMlp, c.hidden_size, c.intermediate_size);
  }
  model.norm("norm", c.hidden_size);
  if (!c.tie_word_embeddings)
    root.linear(WeightKind::kHead, "lm_head", c.vocab_size, c.hidden_size);
}

void visit_expected_weights(const DraftConfig& c, const WeightVisitor& visit) {
  const Emitter root("", visit);
  const auto n_features = static_cast<int64_t>(c.target_layer_ids.size());
  root.linear(WeightKind::kFeatureProjection, "fc", c.hidden_size, n_features * c.hidden_size);
  root.norm("hidden_norm", c.hidden_size);
  root.norm("norm", c.hidden_size);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const Emitter layer = root.at(fmt::format("layers.{}", i));
    layer.norm("input_layernorm", c.hidden_size);
    layer.norm("post_attention_layernorm", c.hidden_size);
    const Emitter attention = layer.at("self_attn");
    const int64_t kv_width = c.n_kv_heads * c.head_dim;
    attention.linear(WeightKind::kAttention, "q_proj", c.n_heads * c.head_dim, c.hidden_size);
    attention.linear(WeightKind::kAttention, "k_proj", kv_width, c.hidden_size);
    attention.linear(WeightKind::kAttention, "v_proj", kv_width, c.hidden_size);
    attention.linear(WeightKind::kAttention, "o_proj", c.hidden_size, c.n_heads * c.head_dim);
    attention.norm("q_norm", c.head_dim);
    attention.norm("k_norm", c.head_dim);
    layer.at("mlp").mlp(WeightKind::kDenseMlp, c.hidden_size, c.intermediate_size);
  }
}

}  // namespace kdt::checkpoint
