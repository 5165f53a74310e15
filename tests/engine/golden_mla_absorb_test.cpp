// kv_b_proj split for absorbed attention, as the model loads it, against the golden bundles: the
// absorbed query and the value of a latent output.
#include <gtest/gtest.h>

#include "model/weight_loader.h"
#include "tests/ops/arrays.h"
#include "tests/ops/golden.h"
#include "tests/ops/tolerance.h"
#include "tests/unit/checkpoint_files.h"

namespace kdt {
namespace {

// y[m, h] = W[h] x[m, h] for x [M, H, in].
std::vector<float> apply(const Backend& backend, const model::Linear& weight,
                         const std::vector<float>& x) {
  const LinearWeight& w = *weight.get();
  const int64_t n_rows = static_cast<int64_t>(x.size()) / (w.n_groups * w.in_features);
  test::Array<float> in(backend, x);
  auto out = test::poisoned<float>(backend, n_rows * w.n_groups * w.out_features);
  linear(backend, {.x = in.data(),
                   .y = out.data(),
                   .weight = &w,
                   .n_rows = static_cast<int32_t>(n_rows),
                   .x_row_stride = w.n_groups * w.in_features,
                   .x_group_stride = w.in_features,
                   .y_row_stride = w.n_groups * w.out_features,
                   .y_group_stride = w.out_features});
  return out.get();
}

void expect_close(const std::vector<float>& found, const std::vector<float>& want, int64_t length) {
  ASSERT_EQ(found.size(), want.size());
  EXPECT_LE(test::relative_error(found.data(), want.data(), want.size()),
            test::tolerance(DType::kF32, static_cast<double>(length)));
}

// The same bundle from a bf16 checkpoint, whose transpose stays bf16, and from an fp32 one.
TEST(MlaAbsorb, GoldenThroughTheLoader) {
  for (const test::Golden& golden : test::golden_bundles("mla_absorb"))
    for (const bool narrow : {true, false}) {
      SCOPED_TRACE(golden.label() + (narrow ? " bf16" : " f32"));
      const std::vector<int64_t> shape = golden.shape("kv_b_proj");
      const std::vector<int64_t> q_shape = golden.shape("q_nope");
      checkpoint::TargetConfig config;
      config.n_heads = golden.scalar<int32_t>("n_heads");
      config.kv_lora_rank = shape[1];
      config.qk_nope_head_dim = q_shape[2];
      config.v_head_dim = shape[0] / config.n_heads - q_shape[2];

      const test::TempDir dir;
      dir.write(
          "model.safetensors",
          checkpoint::safetensors({checkpoint::float_tensor(
              "kv_b_proj.weight", narrow ? "BF16" : "F32", shape, golden.floats("kv_b_proj"))}));
      const checkpoint::Checkpoint files(dir.path());
      model::WeightLoader loader(cpu_backend(), files, config.quantization, {});
      model::Linear w_uk, w_uv;
      loader.kv_b({.is_linear = true, .name = "kv_b_proj", .shape = shape}, config, &w_uk, &w_uv);

      expect_close(apply(cpu_backend(), w_uk, golden.floats("q_nope")), golden.floats("q_abs"),
                   config.qk_nope_head_dim);
      expect_close(apply(cpu_backend(), w_uv, golden.floats("latent_out")), golden.floats("value"),
                   config.kv_lora_rank);
    }
}

}  // namespace
}  // namespace kdt
