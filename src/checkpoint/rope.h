// Rotary embedding constants: plain and YaRN frequencies, amplitudes, the softmax scale.
// Source: YaRN (arXiv 2309.00071) as DeepSeek-V3's and Hugging Face's model code apply it.
// Thread-safe; a RopeConfig out of config.h needs no further checks.
#pragma once

#include <vector>

#include "checkpoint/config.h"

namespace kdt::checkpoint {

// Radians per position of each rotated pair, [dim / 2], in fp32 operations throughout as the
// reference code has it. The angle at position p is float(p) * inv_freq[i], rounded to fp32.
std::vector<float> inv_freq(const RopeConfig& rope);

// 0.1 * mscale * ln(factor) + 1, or 1 for factor <= 1.
double yarn_mscale(double factor, double mscale);

// Softmax scale of the target: (nope + rope)^-0.5, times yarn_mscale(factor, mscale_all_dim)^2
// with YaRN.
float attention_scale(const TargetConfig& config);

// Multiplier of cos and sin of the target: attention_factor if the config has one, else
// yarn_mscale(factor, mscale) / yarn_mscale(factor, mscale_all_dim), or yarn_mscale(factor, 1)
// where one of the two is 0. 1 without YaRN.
float rope_amplitude(const RopeConfig& rope);

// Implementations disagree on the drafter's amplitude under YaRN, and checkpoints were trained
// under either rule. An attention_factor in the config always wins.
enum class DraftAmplitude : uint8_t {
  kByRopeType,   // "yarn": kFullMscale, "deepseek_yarn": kMscaleRatio (the default)
  kFullMscale,   // yarn_mscale(factor, 1), mscale keys ignored: vLLM and SGLang on "yarn"
  kMscaleRatio,  // rope_amplitude: Hugging Face; 1 for mscale == mscale_all_dim
};
float draft_rope_amplitude(const RopeConfig& rope,
                           DraftAmplitude rule = DraftAmplitude::kByRopeType);

}  // namespace kdt::checkpoint
