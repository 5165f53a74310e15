#include "checkpoint/rope.h"

#include <algorithm>
#include <cmath>
#include <numbers>

namespace kdt::checkpoint {
namespace {

// The pair (as a real number) that makes `rotations` turns over the original context.
double correction_dim(const RopeConfig& rope, double rotations) {
  const double context = static_cast<double>(rope.original_max_position_embeddings);
  return static_cast<double>(rope.dim) * std::log(context / (rotations * 2 * std::numbers::pi)) /
         (2 * std::log(rope.theta));
}

}  // namespace

std::vector<float> inv_freq(const RopeConfig& rope) {
  std::vector<float> out(static_cast<size_t>(rope.dim / 2));
  const bool yarn = rope.scaling != RopeConfig::Scaling::kNone;
  double low = 0, high = 1;
  if (yarn) {
    low = std::max(std::floor(correction_dim(rope, rope.beta_fast)), 0.0);
    high = std::min(std::ceil(correction_dim(rope, rope.beta_slow)), double(rope.dim - 1));
    if (low == high) high += 0.001;
  }
  for (size_t i = 0; i < out.size(); ++i) {
    const float exponent = static_cast<float>(2 * i) / static_cast<float>(rope.dim);
    const auto power = static_cast<float>(std::pow(rope.theta, static_cast<double>(exponent)));
    out[i] = 1.0f / power;
    if (!yarn) continue;
    // 0 keeps the frequency (it turns often within the original context), 1 stretches it.
    const float ramp = std::clamp(
        (static_cast<float>(i) - static_cast<float>(low)) / static_cast<float>(high - low), 0.0f,
        1.0f);
    const float stretched = 1.0f / (static_cast<float>(rope.factor) * power);
    out[i] = stretched * ramp + out[i] * (1.0f - ramp);
  }
  return out;
}

double yarn_mscale(double factor, double mscale) {
  return factor <= 1 ? 1.0 : 0.1 * mscale * std::log(factor) + 1.0;
}

float attention_scale(const TargetConfig& config) {
  const auto width = static_cast<double>(config.qk_nope_head_dim + config.qk_rope_head_dim);
  double scale = 1.0 / std::sqrt(width);
  if (config.rope.scaling != RopeConfig::Scaling::kNone) {
    const double mscale = yarn_mscale(config.rope.factor, config.rope.mscale_all_dim);
    scale *= mscale * mscale;
  }
  return static_cast<float>(scale);
}

float rope_amplitude(const RopeConfig& rope) {
  if (rope.scaling == RopeConfig::Scaling::kNone) return 1.0f;
  const bool has_ratio = rope.mscale != 0 && rope.mscale_all_dim != 0;
  const double mscale = has_ratio ? yarn_mscale(rope.factor, rope.mscale) /
                                        yarn_mscale(rope.factor, rope.mscale_all_dim)
                                  : yarn_mscale(rope.factor, 1.0);
  return static_cast<float>(rope.attention_factor.value_or(mscale));
}

float draft_rope_amplitude(const RopeConfig& rope, DraftAmplitude rule) {
  if (rule == DraftAmplitude::kByRopeType)
    rule = rope.scaling == RopeConfig::Scaling::kYarn ? DraftAmplitude::kFullMscale
                                                      : DraftAmplitude::kMscaleRatio;
  const bool full = rule == DraftAmplitude::kFullMscale && !rope.attention_factor &&
                    rope.scaling != RopeConfig::Scaling::kNone;
  return full ? static_cast<float>(yarn_mscale(rope.factor, 1.0)) : rope_amplitude(rope);
}

}  // namespace kdt::checkpoint
