// Every weight a config asks for, with its module path and shape. Internal to src/checkpoint.
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

struct ExpectedWeight {
  WeightKind kind;
  // A Linear is named by its module and may be stored in any quantized form; else the tensor name.
  bool is_linear;
  std::string name;
  std::vector<int64_t> shape;
};

using WeightVisitor = std::function<void(const ExpectedWeight&)>;
void visit_expected_weights(const TargetConfig& config, const WeightVisitor& visit);
void visit_expected_weights(const DraftConfig& config, const WeightVisitor& visit);

}  // namespace kdt::checkpoint
