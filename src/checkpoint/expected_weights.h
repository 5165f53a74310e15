// Every weight a config asks for, by name and shape: what the loaders load and inspect looks for.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/config.h"

namespace kdt::checkpoint {

enum class WeightKind : uint8_t {
  kEmbedding,
  kAttention,
  kDenseMlp,
  kRouter,
  kRoutedExperts,
  kSharedExperts,
  kFeatureProjection,
  kHead,
  kNorms,
  kSkipped,
  kUnexpected,
};
inline constexpr int kWeightKindCount = static_cast<int>(WeightKind::kUnexpected) + 1;

// A Linear [out, in], named by its module and stored in any form that linear_source.h reads, or a
// plain tensor. Without a name: the model has no such weight.
struct ExpectedWeight {
  WeightKind kind = WeightKind::kUnexpected;
  bool is_linear = false;
  std::string name;
  std::vector<int64_t> shape;
};

struct ExpectedMlp {
  ExpectedWeight gate, up, down;
};

struct ExpectedTargetLayer {
  ExpectedWeight input_norm, post_norm;
  ExpectedWeight q_a, q_a_norm, q_b;  // q_b alone, called q_proj, when q_lora_rank is 0
  ExpectedWeight kv_a, kv_a_norm, kv_b, o;
  ExpectedMlp mlp;                     // of a dense layer, or the shared experts
  ExpectedWeight router, router_bias;  // MoE layers only, as the next line
  std::vector<ExpectedWeight> expert_gate, expert_up, expert_down;
};

struct ExpectedTarget {
  ExpectedWeight embedding, norm, head;  // a tied head is the Linear of the embedding's module
};
ExpectedTarget expected_weights(const TargetConfig& config);
ExpectedTargetLayer expected_layer(const TargetConfig& config, int64_t layer);

struct ExpectedDraftLayer {
  ExpectedWeight input_norm, post_norm, q, k, v, o, q_norm, k_norm;
  ExpectedMlp mlp;
};

struct ExpectedDraft {
  ExpectedWeight fc, hidden_norm, norm;
};
ExpectedDraft expected_weights(const DraftConfig& config);
ExpectedDraftLayer expected_layer(const DraftConfig& config, int64_t layer);

// All of the above, once each.
using WeightVisitor = std::function<void(const ExpectedWeight&)>;
void visit_expected_weights(const TargetConfig& config, const WeightVisitor& visit);
void visit_expected_weights(const DraftConfig& config, const WeightVisitor& visit);

}  // namespace kdt::checkpoint
