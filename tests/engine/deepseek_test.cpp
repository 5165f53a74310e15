// Random DeepSeek-V3-shaped checkpoints (FP8 blocks, expert groups, shards, an MTP layer, plain
// RoPE) against transformers' logits; see tests/golden/README.md.
#include <gtest/gtest.h>

#include "kdtr/reader.h"
#include "tests/engine/target_logits.h"
#include "tests/ops/tolerance.h"

namespace kdt {
namespace {

const std::string kDir = std::string(KDT_SOURCE_DIR) + "/tests/golden/deepseek_v3_tiny/";

void expect_logits(const std::string& checkpoint, const std::string& golden_file) {
  const kdtr::Reader golden(kDir + golden_file);
  model::TargetModel target(cpu_backend(), kDir + checkpoint, {}, {});
  int n_prompts = 0;
  for (; golden.find(fmt::format("prompt{}.ids", n_prompts)); ++n_prompts) {
    const auto ids = golden.at(fmt::format("prompt{}.ids", n_prompts)).as<int32_t>();
    const auto want = golden.at(fmt::format("prompt{}.logits", n_prompts)).as<float>();
    const std::vector<float> found =
        test::prompt_logits(target, std::vector<int32_t>(ids.begin(), ids.end()));
    ASSERT_EQ(found.size(), want.size());
    const double error = test::relative_error(found.data(), want.data(), found.size());
    std::printf("%s prompt %d: relative error %.2e\n", checkpoint.c_str(), n_prompts, error);
    EXPECT_LE(error, test::tolerance(DType::kF32, target.config().hidden_size));
  }
  EXPECT_GE(n_prompts, 3);
}

TEST(DeepSeek, Fp8BlocksGroupsShardsYarn) {
  expect_logits("fp8_yarn", "fp8_yarn.kdtr");
}
TEST(DeepSeek, PlainRopeNoQLoraBf16) {
  expect_logits("plain_bf16", "plain.kdtr");
}
TEST(DeepSeek, PlainRopeNoQLoraF16) {
  expect_logits("plain_f16", "plain.kdtr");
}
TEST(DeepSeek, PlainRopeNoQLoraF32) {
  expect_logits("plain_f32", "plain.kdtr");
}

}  // namespace
}  // namespace kdt
