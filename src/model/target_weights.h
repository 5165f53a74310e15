// The weights of a DeepSeek-V3 / Kimi K2 target, bound by name and shape.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/config.h"
#include "model/weight_loader.h"

namespace kdt::model {

// H heads, D hidden, Q q_lora_rank, C kv_lora_rank, R rope, N nope, V v_head_dim, E experts.
struct TargetLayer {
  Buffer<float> input_norm;  // [D]
  Linear q_a;                // [Q, D], absent when q_lora_rank is 0
  Buffer<float> q_a_norm;    // [Q]
  Linear q_b;                // [H * (N + R), Q], or q_proj [H * (N + R), D]
  Linear kv_a;               // [C + R, D]
  Buffer<float> kv_a_norm;   // [C]
  Linear w_uk;               // H x [C, N]
  Linear w_uv;               // H x [V, C]
  Linear o;                  // [D, H * V]
  Buffer<float> post_norm;   // [D]

  // Dense layers, and the shared experts of MoE layers.
  Linear gate, up, down;  // absent in a MoE layer without shared experts

  // MoE layers only.
  bool is_moe = false;
  Linear router;                               // [E, D]
  Buffer<float> router_bias;                   // [E]
  Linear expert_gate, expert_up, expert_down;  // E x [moe, D], E x [moe, D], E x [D, moe]
};

struct TargetWeights {
  DType embedding_dtype = DType::kBF16;
  Buffer<uint8_t> embedding;  // [vocab, D]
  std::vector<TargetLayer> layers;
  Buffer<float> norm;      // [D]
  Linear lm_head;          // [vocab, D]
  Buffer<float> inv_freq;  // [R / 2]
};

// Throws the checkpoint's errors: tensor, expected and found.
TargetWeights load_target_weights(const Backend& backend, const checkpoint::Checkpoint& checkpoint,
                                  const checkpoint::TargetConfig& config, LoadProgress progress);

}  // namespace kdt::model
