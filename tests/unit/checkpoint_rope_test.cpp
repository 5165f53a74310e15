#include <gtest/gtest.h>

#include <cmath>

#include "checkpoint/rope.h"
#include "tests/ops/golden.h"

namespace kdt::checkpoint {
namespace {

RopeConfig kimi_rope(int64_t dim) {
  RopeConfig rope;
  rope.theta = 50000.0;
  rope.dim = dim;
  rope.scaling = RopeConfig::Scaling::kYarn;
  rope.factor = 64.0;
  rope.original_max_position_embeddings = 4096;
  rope.mscale_all_dim = 1.0;
  return rope;
}

double plain(const RopeConfig& rope, int64_t i) {
  return std::pow(rope.theta, -2.0 * static_cast<double>(i) / static_cast<double>(rope.dim));
}

// The frequencies, by the definition in float64, given the ramp's ends.
void expect_ramp(const RopeConfig& rope, double low, double high) {
  const std::vector<float> found = inv_freq(rope);
  ASSERT_EQ(static_cast<int64_t>(found.size()), rope.dim / 2);
  for (int64_t i = 0; i < rope.dim / 2; ++i) {
    const double ramp = std::clamp((static_cast<double>(i) - low) / (high - low), 0.0, 1.0);
    const double want = plain(rope, i) * (ramp / rope.factor + 1 - ramp);
    EXPECT_NEAR(found[static_cast<size_t>(i)] / want, 1.0, 1e-6) << "pair " << i;
  }
}

TEST(Rope, PlainFrequencies) {
  RopeConfig rope;
  rope.dim = 64;
  for (int64_t i = 0; i < 32; ++i)
    EXPECT_NEAR(inv_freq(rope)[static_cast<size_t>(i)] / plain(rope, i), 1.0, 2e-7);
  EXPECT_EQ(inv_freq(rope)[0], 1.0f);
  EXPECT_EQ(rope_amplitude(rope), 1.0f);
  EXPECT_EQ(draft_rope_amplitude(rope), 1.0f);
}

TEST(Rope, YarnRampsOfKimi) {
  expect_ramp(kimi_rope(64), 8, 20);
  expect_ramp(kimi_rope(128), 17, 39);  // the drafter
  RopeConfig k2 = kimi_rope(64);
  k2.beta_fast = 1.0;  // as beta_slow: K2-Instruct and K2-Thinking
  expect_ramp(k2, 19, 20);
}

TEST(Rope, EmptyRampIsAStep) {
  RopeConfig rope = kimi_rope(64);
  rope.beta_fast = 1.0;
  rope.original_max_position_embeddings = 6;  // just under one turn: both ends fall on pair 0
  expect_ramp(rope, 0, 0.001);
}

TEST(Rope, SoftmaxScalesOfKimi) {
  TargetConfig config;
  config.qk_nope_head_dim = 128;
  config.qk_rope_head_dim = 64;
  EXPECT_FLOAT_EQ(attention_scale(config), 0.07216878f);
  config.rope = kimi_rope(64);
  EXPECT_NEAR(attention_scale(config), 0.1446796258, 1e-8);
  config.rope.factor = 32.0;
  EXPECT_NEAR(attention_scale(config), 0.1308608, 1e-7);
  config.rope.mscale_all_dim = 0.0;
  EXPECT_FLOAT_EQ(attention_scale(config), 0.07216878f);
}

TEST(Rope, Amplitudes) {
  RopeConfig rope = kimi_rope(64);
  const float full = 1.4158883083f;
  EXPECT_EQ(rope_amplitude(rope), 1.0f);
  rope.mscale_all_dim = 0.0;
  EXPECT_FLOAT_EQ(rope_amplitude(rope), full);
  rope.attention_factor = 1.25;
  EXPECT_EQ(rope_amplitude(rope), 1.25f);

  RopeConfig draft = kimi_rope(128);
  EXPECT_FLOAT_EQ(draft_rope_amplitude(draft), full);
  EXPECT_EQ(draft_rope_amplitude(draft, DraftAmplitude::kMscaleRatio), 1.0f);
  draft.scaling = RopeConfig::Scaling::kDeepseekYarn;
  EXPECT_EQ(draft_rope_amplitude(draft), 1.0f);
  EXPECT_FLOAT_EQ(draft_rope_amplitude(draft, DraftAmplitude::kFullMscale), full);
  draft.attention_factor = 1.25;
  EXPECT_EQ(draft_rope_amplitude(draft, DraftAmplitude::kFullMscale), 1.25f);
}

// ln and pow differ by an ulp or two between math libraries.
TEST(Rope, GoldenYarn) {
  for (const test::Golden& golden : test::golden_bundles("yarn")) {
    SCOPED_TRACE(golden.label());
    TargetConfig config;
    config.qk_rope_head_dim = golden.scalar<int32_t>("dim");
    config.qk_nope_head_dim = golden.scalar<int32_t>("qk_dim") - config.qk_rope_head_dim;
    RopeConfig& rope = config.rope;
    rope.dim = config.qk_rope_head_dim;
    rope.theta = golden.scalar<double>("rope_theta");
    if (golden.has("factor")) {
      rope.scaling = RopeConfig::Scaling::kYarn;
      rope.factor = golden.scalar<double>("factor");
      rope.original_max_position_embeddings =
          static_cast<int64_t>(golden.scalar<double>("original_max_position_embeddings"));
      rope.beta_fast = golden.scalar<double>("beta_fast");
      rope.beta_slow = golden.scalar<double>("beta_slow");
      rope.mscale = golden.scalar<double>("mscale");
      rope.mscale_all_dim = golden.scalar<double>("mscale_all_dim");
    }
    const std::vector<float> found = inv_freq(rope), want = golden.get<float>("inv_freq");
    ASSERT_EQ(found.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i)
      EXPECT_NEAR(found[i] / want[i], 1.0, 0x1p-22) << "pair " << i;
    EXPECT_FLOAT_EQ(rope_amplitude(rope), static_cast<float>(golden.scalar<double>("amplitude")));
    EXPECT_FLOAT_EQ(attention_scale(config),
                    static_cast<float>(golden.scalar<double>("softmax_scale")));
  }
}

}  // namespace
}  // namespace kdt::checkpoint
