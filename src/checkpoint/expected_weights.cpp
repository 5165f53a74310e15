#include "checkpoint/expected_weights.h"

#include <fmt/format.h>

namespace kdt::checkpoint {
namespace {

// The weights below one module path.
class Module {
 public:
  explicit Module(std::string path) : path_(std::move(path)) {}

  Module at(const std::string& child) const { return Module(path_ + child + "."); }
  ExpectedWeight linear(WeightKind kind, const std::string& module, int64_t out, int64_t in) const {
    return {kind, true, path_ + module, {out, in}};
  }
  ExpectedWeight tensor(WeightKind kind, const std::string& name,
                        std::vector<int64_t> shape) const {
    return {kind, false, path_ + name, std::move(shape)};
  }
  ExpectedWeight norm(const std::string& module, int64_t width) const {
    return tensor(WeightKind::kNorms, module + ".weight", {width});
  }
  ExpectedMlp mlp(WeightKind kind, int64_t hidden, int64_t inner) const {
    return {.gate = linear(kind, "gate_proj", inner, hidden),
            .up = linear(kind, "up_proj", inner, hidden),
            .down = linear(kind, "down_proj", hidden, inner)};
  }

 private:
  std::string path_;
};

void add_attention(const TargetConfig& c, const Module& attention, ExpectedTargetLayer* layer) {
  const auto kind = WeightKind::kAttention;
  const int64_t q_width = c.n_heads * (c.qk_nope_head_dim + c.qk_rope_head_dim);
  if (c.q_lora_rank == 0) {
    layer->q_b = attention.linear(kind, "q_proj", q_width, c.hidden_size);
  } else {
    layer->q_a = attention.linear(kind, "q_a_proj", c.q_lora_rank, c.hidden_size);
    layer->q_a_norm = attention.norm("q_a_layernorm", c.q_lora_rank);
    layer->q_b = attention.linear(kind, "q_b_proj", q_width, c.q_lora_rank);
  }
  layer->kv_a = attention.linear(kind, "kv_a_proj_with_mqa", c.kv_lora_rank + c.qk_rope_head_dim,
                                 c.hidden_size);
  layer->kv_a_norm = attention.norm("kv_a_layernorm", c.kv_lora_rank);
  layer->kv_b = attention.linear(kind, "kv_b_proj", c.n_heads * (c.qk_nope_head_dim + c.v_head_dim),
                                 c.kv_lora_rank);
  layer->o = attention.linear(kind, "o_proj", c.hidden_size, c.n_heads * c.v_head_dim);
}

void add_moe(const TargetConfig& c, const Module& mlp, ExpectedTargetLayer* layer) {
  layer->router = mlp.linear(WeightKind::kRouter, "gate", c.n_routed_experts, c.hidden_size);
  layer->router_bias =
      mlp.tensor(WeightKind::kRouter, "gate.e_score_correction_bias", {c.n_routed_experts});
  for (int64_t e = 0; e < c.n_routed_experts; ++e) {
    ExpectedMlp expert =
        mlp.at(fmt::format("experts.{}", e))
            .mlp(WeightKind::kRoutedExperts, c.hidden_size, c.moe_intermediate_size);
    layer->expert_gate.push_back(std::move(expert.gate));
    layer->expert_up.push_back(std::move(expert.up));
    layer->expert_down.push_back(std::move(expert.down));
  }
  if (c.n_shared_experts > 0)
    layer->mlp = mlp.at("shared_experts")
                     .mlp(WeightKind::kSharedExperts, c.hidden_size,
                          c.n_shared_experts * c.moe_intermediate_size);
}

// Passes on what the model has.
void visit_all(std::initializer_list<const ExpectedWeight*> weights, const WeightVisitor& visit) {
  for (const ExpectedWeight* weight : weights)
    if (!weight->name.empty()) visit(*weight);
}

}  // namespace

ExpectedTarget expected_weights(const TargetConfig& c) {
  const Module root(c.weight_prefix), model = root.at("model");
  return {.embedding = model.tensor(WeightKind::kEmbedding, "embed_tokens.weight",
                                    {c.vocab_size, c.hidden_size}),
          .norm = model.norm("norm", c.hidden_size),
          .head = c.tie_word_embeddings
                      ? model.linear(WeightKind::kEmbedding, "embed_tokens", c.vocab_size,
                                     c.hidden_size)
                      : root.linear(WeightKind::kHead, "lm_head", c.vocab_size, c.hidden_size)};
}

ExpectedTargetLayer expected_layer(const TargetConfig& c, int64_t index) {
  const Module module = Module(c.weight_prefix).at(fmt::format("model.layers.{}", index));
  ExpectedTargetLayer layer;
  layer.input_norm = module.norm("input_layernorm", c.hidden_size);
  layer.post_norm = module.norm("post_attention_layernorm", c.hidden_size);
  add_attention(c, module.at("self_attn"), &layer);
  if (is_moe_layer(c, index))
    add_moe(c, module.at("mlp"), &layer);
  else
    layer.mlp = module.at("mlp").mlp(WeightKind::kDenseMlp, c.hidden_size, c.intermediate_size);
  return layer;
}

ExpectedDraft expected_weights(const DraftConfig& c) {
  const Module root("");
  const auto n_features = static_cast<int64_t>(c.target_layer_ids.size());
  return {.fc = root.linear(WeightKind::kFeatureProjection, "fc", c.hidden_size,
                            n_features * c.hidden_size),
          .hidden_norm = root.norm("hidden_norm", c.hidden_size),
          .norm = root.norm("norm", c.hidden_size)};
}

ExpectedDraftLayer expected_layer(const DraftConfig& c, int64_t index) {
  const auto kind = WeightKind::kAttention;
  const Module module(fmt::format("layers.{}.", index)), attention = module.at("self_attn");
  const int64_t q_width = c.n_heads * c.head_dim, kv_width = c.n_kv_heads * c.head_dim;
  return {.input_norm = module.norm("input_layernorm", c.hidden_size),
          .post_norm = module.norm("post_attention_layernorm", c.hidden_size),
          .q = attention.linear(kind, "q_proj", q_width, c.hidden_size),
          .k = attention.linear(kind, "k_proj", kv_width, c.hidden_size),
          .v = attention.linear(kind, "v_proj", kv_width, c.hidden_size),
          .o = attention.linear(kind, "o_proj", c.hidden_size, q_width),
          .q_norm = attention.norm("q_norm", c.head_dim),
          .k_norm = attention.norm("k_norm", c.head_dim),
          .mlp = module.at("mlp").mlp(WeightKind::kDenseMlp, c.hidden_size, c.intermediate_size)};
}

void visit_expected_weights(const TargetConfig& c, const WeightVisitor& visit) {
  const ExpectedTarget target = expected_weights(c);
  visit_all({&target.embedding, &target.norm}, visit);
  if (!c.tie_word_embeddings) visit(target.head);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const ExpectedTargetLayer w = expected_layer(c, i);
    visit_all({&w.input_norm, &w.post_norm, &w.q_a, &w.q_a_norm, &w.q_b, &w.kv_a, &w.kv_a_norm,
               &w.kv_b, &w.o, &w.mlp.gate, &w.mlp.up, &w.mlp.down, &w.router, &w.router_bias},
              visit);
    for (size_t e = 0; e < w.expert_gate.size(); ++e)
      visit_all({&w.expert_gate[e], &w.expert_up[e], &w.expert_down[e]}, visit);
  }
}

void visit_expected_weights(const DraftConfig& c, const WeightVisitor& visit) {
  const ExpectedDraft draft = expected_weights(c);
  visit_all({&draft.fc, &draft.hidden_norm, &draft.norm}, visit);
  for (int64_t i = 0; i < c.n_layers; ++i) {
    const ExpectedDraftLayer w = expected_layer(c, i);
    visit_all({&w.input_norm, &w.post_norm, &w.q, &w.k, &w.v, &w.o, &w.q_norm, &w.k_norm,
               &w.mlp.gate, &w.mlp.up, &w.mlp.down},
              visit);
  }
}

}  // namespace kdt::checkpoint
