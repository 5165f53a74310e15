#include "model/target_weights.h"

#include "checkpoint/rope.h"

namespace kdt::model {
namespace {

using checkpoint::TargetConfig;

TargetLayer load_layer(WeightLoader& loader, const TargetConfig& c, int64_t index) {
  const checkpoint::ExpectedTargetLayer weights = checkpoint::expected_layer(c, index);
  TargetLayer layer;
  layer.input_norm = loader.vector(weights.input_norm);
  layer.q_a = loader.linear(weights.q_a);
  layer.q_a_norm = loader.vector(weights.q_a_norm);
  layer.q_b = loader.linear(weights.q_b);
  layer.kv_a = loader.linear(weights.kv_a);
  layer.kv_a_norm = loader.vector(weights.kv_a_norm);
  loader.kv_b(weights.kv_b, c, &layer.w_uk, &layer.w_uv);
  layer.o = loader.linear(weights.o);
  layer.post_norm = loader.vector(weights.post_norm);
  layer.gate = loader.linear(weights.mlp.gate);
  layer.up = loader.linear(weights.mlp.up);
  layer.down = loader.linear(weights.mlp.down);

  layer.is_moe = checkpoint::is_moe_layer(c, index);
  if (!layer.is_moe) return layer;
  layer.router = loader.linear(weights.router);
  layer.router_bias = loader.vector(weights.router_bias);
  layer.expert_gate = loader.grouped(weights.expert_gate);
  layer.expert_up = loader.grouped(weights.expert_up);
  layer.expert_down = loader.grouped(weights.expert_down);
  return layer;
}

}  // namespace

TargetWeights load_target_weights(const Backend& backend, const checkpoint::Checkpoint& checkpoint,
                                  const TargetConfig& c, LoadProgress progress) {
  WeightLoader loader(backend, checkpoint, c.quantization, std::move(progress));
  const checkpoint::ExpectedTarget expected = checkpoint::expected_weights(c);
  TargetWeights weights;
  weights.lm_head = loader.linear(expected.head);
  weights.embedding = loader.table(expected.embedding, &weights.embedding_dtype);
  weights.norm = loader.vector(expected.norm);
  for (int64_t i = 0; i < c.n_layers; ++i) weights.layers.push_back(load_layer(loader, c, i));
  loader.finish();

  const std::vector<float> inv_freq = checkpoint::inv_freq(c.rope);
  weights.inv_freq = Buffer<float>(backend, inv_freq.size());
  backend.copy_in(weights.inv_freq.data(), inv_freq.data(), inv_freq.size() * sizeof(float), {});
  return weights;
}

}  // namespace kdt::model
