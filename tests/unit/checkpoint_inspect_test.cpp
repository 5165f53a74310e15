#include <gtest/gtest.h>

#include <algorithm>

#include "checkpoint/inspect.h"
#include "checkpoint_files.h"

namespace kdt::checkpoint {
namespace {

std::string model(const std::string& name) {
  return std::string(KDT_SOURCE_DIR) + "/models/" + name;
}

InspectTotals totals_of(const InspectReport& report, const std::string& kind) {
  for (const InspectTotals& totals : report.kinds)
    if (totals.kind == kind) return totals;
  ADD_FAILURE() << "no " << kind;
  return {};
}

TEST(Inspect, TheTinyPairIsComplete) {
  const InspectReport target = inspect_checkpoint(model("tiny-k2"));
  EXPECT_TRUE(target.complete());
  EXPECT_EQ(target.unexpected.count, 0);
  EXPECT_EQ(target.kv_elements_per_token, 5 * 576);
  EXPECT_EQ(totals_of(target, "routed experts").parameters, 4 * 16 * 3 * 128 * 256);
  EXPECT_EQ(totals_of(target, "routed experts").tensors, 4 * 16 * 3 * 3);
  EXPECT_EQ(totals_of(target, "embedding").bytes, 4096 * 256 * 2);
  int64_t tensors = 0;
  for (const InspectTotals& totals : target.kinds) tensors += totals.tensors;
  EXPECT_EQ(tensors, 647);

  const InspectReport draft = inspect_checkpoint(model("tiny-k2-dflash"));
  EXPECT_TRUE(draft.complete());
  EXPECT_EQ(draft.unexpected.count, 0);
  EXPECT_EQ(draft.kv_elements_per_token, 3 * 2 * 4 * 64);
  expect_has(format_report(draft), "complete: every tensor");
}

// A sharded, flat-named, FP8 model with one dense and one MoE layer, no query rank, an MTP layer
// and a vision tower. Names and shapes are written out by hand.
class SmallModel {
 public:
  SmallModel() {
    const std::string a = "model.layers.0.", b = "model.layers.1.";
    plain("model.embed_tokens.weight", {50, 64});
    for (const std::string& layer : {a, b}) {
      plain(layer + "input_layernorm.weight", {64});
      plain(layer + "post_attention_layernorm.weight", {64});
      fp8(layer + "self_attn.q_proj", 2 * (16 + 8), 64);
      fp8(layer + "self_attn.kv_a_proj_with_mqa", 32 + 8, 64);
      plain(layer + "self_attn.kv_a_layernorm.weight", {32});
      fp8(layer + "self_attn.kv_b_proj", 2 * (16 + 12), 32);
      fp8(layer + "self_attn.o_proj", 64, 2 * 12);
    }
    mlp(a + "mlp.", 160);
    plain(b + "mlp.gate.weight", {4, 64});
    tensors_.push_back(zeros(b + "mlp.gate.e_score_correction_bias", "F32", {4}));
    for (int e = 0; e < 4; ++e) mlp(b + "mlp.experts." + std::to_string(e) + ".", 40);
    mlp(b + "mlp.shared_experts.", 40);
    plain("model.norm.weight", {64});
    plain("lm_head.weight", {50, 64});
    plain("model.layers.2.eh_proj.weight", {64, 128});
    plain("vision_tower.patch.weight", {3, 3});
  }

  std::vector<TestTensor>& tensors() { return tensors_; }
  TestTensor& at(const std::string& name) {
    return *std::find_if(tensors_.begin(), tensors_.end(),
                         [&](const TestTensor& t) { return t.name == name; });
  }

  // Alternates tensors between two shards.
  void write(const TempDir& dir) const {
    std::vector<TestTensor> shards[2];
    TestJson map;
    for (size_t i = 0; i < tensors_.size(); ++i) {
      shards[i % 2].push_back(tensors_[i]);
      map[tensors_[i].name] = fmt::format("model-{}.safetensors", i % 2);
    }
    for (int i = 0; i < 2; ++i)
      dir.write(fmt::format("model-{}.safetensors", i), safetensors(shards[i]));
    dir.write("model.safetensors.index.json", TestJson{{"weight_map", map}}.dump());
    dir.write("config.json", R"({
      "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 2,
      "num_attention_heads": 2, "q_lora_rank": null, "kv_lora_rank": 32, "qk_nope_head_dim": 16,
      "qk_rope_head_dim": 8, "v_head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2,
      "n_shared_experts": 1, "moe_intermediate_size": 40, "intermediate_size": 160,
      "first_k_dense_replace": 1, "n_group": 2, "topk_group": 1, "vocab_size": 50,
      "max_position_embeddings": 128, "num_nextn_predict_layers": 1,
      "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]}})");
  }

 private:
  void plain(const std::string& name, const std::vector<int64_t>& shape) {
    tensors_.push_back(zeros(name, "BF16", shape));
  }
  void fp8(const std::string& module, int64_t out, int64_t in) {
    tensors_.push_back(zeros(module + ".weight", "F8_E4M3", {out, in}));
    tensors_.push_back(
        zeros(module + ".weight_scale_inv", "F32", {(out + 127) / 128, (in + 127) / 128}));
  }
  void mlp(const std::string& path, int64_t inner) {
    fp8(path + "gate_proj", inner, 64);
    fp8(path + "up_proj", inner, 64);
    fp8(path + "down_proj", 64, inner);
  }

  std::vector<TestTensor> tensors_;
};

TEST(Inspect, AFlatFp8ModelIsComplete) {
  const TempDir dir;
  SmallModel().write(dir);
  const InspectReport report = inspect_checkpoint(dir.path());
  EXPECT_TRUE(report.complete()) << format_report(report);
  EXPECT_EQ(report.unexpected.count, 0) << format_report(report);
  EXPECT_EQ(totals_of(report, "skipped").tensors, 2);
  EXPECT_EQ(totals_of(report, "dense mlp").parameters, 3 * 160 * 64);
  EXPECT_EQ(totals_of(report, "dense mlp").bytes, 3 * 160 * 64 + 3 * 2 * 4);
  EXPECT_EQ(report.kv_elements_per_token, 2 * 40);
}

TEST(Inspect, FindsMissingWrongAndUnexpected) {
  const TempDir dir;
  SmallModel small;
  small.at("model.norm.weight").name = "model.normal.weight";
  small.at("model.layers.1.mlp.experts.3.up_proj.weight_scale_inv").name = "stray";
  TestTensor& gate = small.at("model.layers.1.mlp.gate.weight");
  gate = zeros(gate.name, "BF16", {5, 64});
  small.write(dir);
  const InspectReport report = inspect_checkpoint(dir.path());
  EXPECT_FALSE(report.complete());
  const std::string text = format_report(report);
  EXPECT_EQ(report.missing.count, 1);
  EXPECT_EQ(report.wrong.count, 2);
  EXPECT_EQ(report.unexpected.count, 2);
  expect_has(text, "1 missing:\n  model.norm.weight [64]");
  expect_has(text, "gate.weight is bf16 [5, 64], expected f32 or bf16 or f16 [4, 64]");
  expect_has(text, "experts.3.up_proj.weight_scale_inv is missing");
  expect_has(text, "model.normal.weight bf16 [64]");
  EXPECT_EQ(text.find("complete:"), std::string::npos);
}

TEST(Inspect, LongListsAreCut) {
  const TempDir dir;
  SmallModel small;
  small.tensors().resize(1);
  small.write(dir);
  const InspectReport report = inspect_checkpoint(dir.path());
  EXPECT_GT(report.missing.count, 20);
  EXPECT_EQ(report.missing.first.size(), 20u);
  expect_has(format_report(report), "  ... and ");
}

}  // namespace
}  // namespace kdt::checkpoint
