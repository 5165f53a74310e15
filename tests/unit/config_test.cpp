#include "checkpoint/config.h"

#include <gtest/gtest.h>

#include "checkpoint_files.h"

namespace kdt::checkpoint {
namespace {

// A flat DeepSeek-V3 config with groups and FP8 blocks.
TestJson flat_target() {
  return TestJson::parse(R"({
    "architectures": ["DeepseekV3ForCausalLM"], "hidden_size": 64, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 4, "q_lora_rank": 24, "kv_lora_rank": 32,
    "qk_nope_head_dim": 16, "qk_rope_head_dim": 8, "v_head_dim": 16, "n_routed_experts": 8,
    "num_experts_per_tok": 2, "n_shared_experts": 2, "moe_intermediate_size": 48,
    "intermediate_size": 128, "first_k_dense_replace": 1, "n_group": 4, "topk_group": 2,
    "routed_scaling_factor": 2.5, "vocab_size": 100, "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-05, "num_nextn_predict_layers": 1, "eos_token_id": 7,
    "quantization_config": {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
                            "weight_block_size": [128, 128]}})");
}

TestJson int4_quantization() {
  return TestJson::parse(R"({"quant_method": "compressed-tensors", "format": "pack-quantized",
    "ignore": ["lm_head"], "config_groups": {"group_0": {"targets": ["Linear"], "weights":
    {"num_bits": 4, "type": "int", "symmetric": true, "strategy": "group", "group_size": 32}}}})");
}

TestJson draft() {
  return TestJson::parse(R"({
    "architectures": ["DFlashDraftModel"], "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "intermediate_size": 128,
    "vocab_size": 100, "max_position_embeddings": 4096, "num_target_layers": 3, "block_size": 8,
    "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 2048,
    "rope_parameters": {"rope_type": "deepseek_yarn", "rope_theta": 50000.0, "factor": 64.0,
      "original_max_position_embeddings": 64, "mscale": 1.0, "mscale_all_dim": 1.0},
    "dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 99}})");
}

TargetConfig parse_target(const TestJson& json, const std::string& generation = "") {
  return parse_target_config("dir/config.json", json.dump(), generation);
}
DraftConfig parse_draft(const TestJson& json) {
  return parse_draft_config("dir/config.json", json.dump());
}

std::string file(const std::string& model, const std::string& name) {
  return std::string(KDT_SOURCE_DIR) + "/models/" + model + "/" + name;
}

TEST(TargetConfig, ReadsTheTinyModel) {
  const TargetConfig c = load_target_config(file("tiny-k2", ""));
  EXPECT_EQ(c.weight_prefix, "language_model.");
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.n_layers, 5);
  EXPECT_EQ(c.n_heads, 4);
  EXPECT_EQ(c.q_lora_rank, 128);
  EXPECT_EQ(c.kv_lora_rank, 512);
  EXPECT_EQ(c.n_routed_experts, 16);
  EXPECT_EQ(c.n_experts_per_tok, 4);
  EXPECT_EQ(c.rms_norm_eps, 1e-5f);
  EXPECT_EQ(c.routed_scaling_factor, 2.827f);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kYarn);
  EXPECT_EQ(c.rope.factor, 8.0);
  EXPECT_EQ(c.rope.dim, 64);
  EXPECT_EQ(c.quantization.format, QuantizationConfig::Format::kInt4Pack);
  EXPECT_EQ(c.quantization.group_size, 32);
  EXPECT_EQ(c.stop_token_ids, (std::vector<int32_t>{4065, 4066}));
  EXPECT_FALSE(c.tie_word_embeddings);
  EXPECT_FALSE(is_moe_layer(c, 0));
  EXPECT_TRUE(is_moe_layer(c, 1));
}

TEST(TargetConfig, ReadsTheFlatForm) {
  const TargetConfig c = parse_target(flat_target());
  EXPECT_EQ(c.weight_prefix, "");
  EXPECT_EQ(c.n_group, 4);
  EXPECT_EQ(c.topk_group, 2);
  EXPECT_EQ(c.n_mtp_layers, 1);
  EXPECT_EQ(c.moe_layer_freq, 1);
  EXPECT_TRUE(c.norm_topk_prob);
  EXPECT_EQ(c.rope.theta, 10000.0);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kNone);
  EXPECT_EQ(c.quantization.format, QuantizationConfig::Format::kFp8Block);
  EXPECT_EQ(c.quantization.block_size, 128);
}

TEST(TargetConfig, NullQueryRankMeansOneProjection) {
  TestJson json = flat_target();
  json["q_lora_rank"] = nullptr;
  EXPECT_EQ(parse_target(json).q_lora_rank, 0);
  json.erase("q_lora_rank");
  expect_has(message_of([&] { parse_target(json); }),
             "q_lora_rank is missing, expected an integer");
}

TEST(TargetConfig, StopTokensAreTheUnion) {
  TestJson json = flat_target();
  json["eos_token_id"] = {9, 7};
  EXPECT_EQ(parse_target(json, R"({"eos_token_id": [3, 7]})").stop_token_ids,
            (std::vector<int32_t>{3, 7, 9}));
  json.erase("eos_token_id");
  EXPECT_TRUE(parse_target(json).stop_token_ids.empty());
  EXPECT_TRUE(parse_target(json, R"({"eos_token_id": null})").stop_token_ids.empty());
  expect_has(message_of([&] { parse_target(json, R"({"eos_token_id": 100})"); }),
             "dir/generation_config.json: eos_token_id is 100, expected a token id");
  expect_has(message_of([&] { parse_target(json, "[1]"); }), "dir/generation_config.json: a JSON");
}

TEST(TargetConfig, RopeParametersHoldTheThetaToo) {
  TestJson json = flat_target();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 5e5}};
  EXPECT_EQ(parse_target(json).rope.theta, 5e5);
  json["rope_parameters"] = {{"rope_type", "yarn"}, {"factor", 4}};
  json["rope_theta"] = 123.0;
  const RopeConfig rope = parse_target(json).rope;
  EXPECT_EQ(rope.theta, 123.0);
  EXPECT_EQ(rope.original_max_position_embeddings, 4096);
  EXPECT_EQ(rope.beta_fast, 32.0);
  EXPECT_EQ(rope.mscale_all_dim, 0.0);
  EXPECT_FALSE(rope.attention_factor.has_value());
}

// One change to a good config and a part of the message it must give. A discarded value erases.
struct BadConfig {
  const char* pointer;
  TestJson value;
  const char* expected;
};
const TestJson kErase(TestJson::value_t::discarded);

TestJson changed(TestJson json, const BadConfig& bad) {
  const TestJson::json_pointer pointer(bad.pointer);
  if (bad.value.is_discarded())
    json[pointer.parent_pointer()].erase(pointer.back());
  else
    json[pointer] = bad.value;
  return json;
}

TEST(TargetConfig, ContradictionsNameFileKeyValueAndExpectation) {
  const std::vector<BadConfig> table = {
      {"/hidden_size", kErase, "hidden_size is missing, expected an integer from 1 to 1048576"},
      {"/hidden_size", 0, "hidden_size is 0, expected an integer from 1"},
      {"/hidden_size", -64, "hidden_size is -64"},
      {"/hidden_size", 64.0, "hidden_size is 64.0"},
      {"/hidden_size", "64", "hidden_size is \"64\""},
      {"/hidden_size", 18446744073709551615u, "hidden_size is 18446744073709551615"},
      {"/num_hidden_layers", 0, "num_hidden_layers is 0"},
      {"/num_hidden_layers", 1000000, "num_hidden_layers is 1000000"},
      {"/num_attention_heads", 0, "num_attention_heads is 0"},
      {"/num_attention_heads", 1 << 19, "num_key_value_heads is 4, expected num_attention_heads"},
      {"/num_key_value_heads", 2, "num_key_value_heads is 2, expected num_attention_heads 4"},
      {"/kv_lora_rank", 0, "kv_lora_rank is 0"},
      {"/kv_lora_rank", nullptr, "kv_lora_rank is null"},
      {"/qk_rope_head_dim", 7, "qk_rope_head_dim is 7, expected an even number"},
      {"/v_head_dim", 1 << 20, "v_head_dim is 1048576"},
      {"/n_routed_experts", 0, "n_routed_experts is 0"},
      {"/num_experts_per_tok", 9, "num_experts_per_tok is 9, expected an integer from 1 to 8"},
      {"/num_experts_per_tok", 5, "num_experts_per_tok is 5, expected at most 4, the experts of"},
      {"/n_group", 3, "n_group is 3, expected a divisor of n_routed_experts 8"},
      {"/n_group", 8, "n_group is 8, expected at most n_routed_experts / 2 = 4"},
      {"/n_group", 0, "n_group is 0"},
      {"/topk_group", 5, "topk_group is 5, expected an integer from 1 to 4"},
      {"/n_shared_experts", 30000, "n_shared_experts is 30000"},
      {"/moe_intermediate_size", 1 << 20, "n_shared_experts times moe_intermediate_size 1048576"},
      {"/first_k_dense_replace", 4, "first_k_dense_replace is 4, expected an integer from 0 to 3"},
      {"/moe_layer_freq", 0, "moe_layer_freq is 0"},
      {"/routed_scaling_factor", -1.0, "routed_scaling_factor is -1.0"},
      {"/norm_topk_prob", 1, "norm_topk_prob is 1, expected true or false"},
      {"/vocab_size", 0, "vocab_size is 0"},
      {"/max_position_embeddings", kErase, "max_position_embeddings is missing"},
      {"/rms_norm_eps", -1e-6, "rms_norm_eps is -1e-06"},
      {"/scoring_func", "softmax", "scoring_func is \"softmax\", expected \"sigmoid\""},
      {"/topk_method", "greedy", "topk_method is \"greedy\""},
      {"/hidden_act", "gelu", "hidden_act is \"gelu\", expected \"silu\""},
      {"/attention_bias", true, "attention_bias is true, expected false"},
      {"/rope_interleave", false, "rope_interleave is false"},
      {"/architectures", TestJson::array(), "architectures is [], expected"},
      {"/architectures", {"LlamaForCausalLM"}, "architectures is [\"LlamaForCausalLM\"]"},
      {"/architectures", {"DFlashDraftModel"}, "this is a drafter, for --draft"},
      {"/architectures", {"KimiK25ForConditionalGeneration"}, "text_config is missing"},
      {"/architectures", 3, "architectures is 3"},
      {"/eos_token_id", 100, "eos_token_id is 100, expected a token id"},
      {"/eos_token_id", -1, "eos_token_id is -1"},
      {"/eos_token_id", {1, "x"}, "eos_token_id is [1,\"x\"]"},
      {"/rope_theta", 0, "rope_theta is 0"},
      {"/rope_scaling", 3, "rope_scaling is 3, expected an object"},
      {"/rope_scaling", {{"type", "linear"}, {"factor", 2}}, "rope_scaling.type is \"linear\""},
      {"/rope_scaling", {{"factor", 2}}, "rope_scaling.type is missing"},
      {"/rope_scaling", {{"type", "yarn"}}, "rope_scaling.factor is missing"},
      {"/rope_scaling", {{"type", "yarn"}, {"factor", 0.5}}, "rope_scaling.factor is 0.5"},
      {"/rope_scaling",
       {{"type", "yarn"}, {"factor", 2}, {"beta_fast", 0.5}},
       "rope_scaling.beta_fast is 0.5, expected at least beta_slow 1"},
      {"/rope_scaling",
       {{"type", "yarn"}, {"factor", 2}, {"truncate", false}},
       "rope_scaling.truncate is false"},
      {"/quantization_config/quant_method", "awq", "quantization_config.quant_method is \"awq\""},
      {"/quantization_config/quant_method", kErase, "quant_method is missing"},
      {"/quantization_config/fmt", "e5m2", "quantization_config.fmt is \"e5m2\""},
      {"/quantization_config/activation_scheme", "static", "activation_scheme is \"static\""},
      {"/quantization_config/weight_block_size", {64, 64}, "weight_block_size is [64,64]"},
      {"/quantization_config/weight_block_size", kErase, "weight_block_size is missing"},
  };
  for (const BadConfig& bad : table) {
    SCOPED_TRACE(std::string(bad.pointer) + " " + bad.expected);
    const std::string message = message_of([&] { parse_target(changed(flat_target(), bad)); });
    expect_has(message, "dir/config.json: ");
    expect_has(message, bad.expected);
  }
}

TEST(TargetConfig, ProductsStayBounded) {
  TestJson json = flat_target();
  json["num_attention_heads"] = json["num_key_value_heads"] = 1 << 17;
  expect_has(message_of([&] { parse_target(json); }), "num_attention_heads times head width");
  json = flat_target();
  json["n_routed_experts"] = 1024;
  json["num_hidden_layers"] = 1024;
  expect_has(message_of([&] { parse_target(json); }), "n_routed_experts times num_hidden_layers");
}

TEST(TargetConfig, OtherQuantizationSchemesAreRefused) {
  const std::vector<BadConfig> table = {
      {"/format", "nvfp4-pack-quantized", "quantization_config.format is \"nvfp4-pack-quantized\""},
      {"/kv_cache_scheme", {{"num_bits", 8}}, "kv_cache_scheme is {"},
      {"/config_groups", kErase, "config_groups is missing"},
      {"/config_groups/group_1", {{"targets", {"x"}}}, "config_groups is {"},
      {"/config_groups/group_0/targets", {"re:.*"}, "group_0.targets is [\"re:.*\"]"},
      {"/config_groups/group_0/input_activations", {{"num_bits", 8}}, "input_activations is {"},
      {"/config_groups/group_0/weights", kErase, "group_0.weights is missing"},
      {"/config_groups/group_0/weights/num_bits", 8, "weights.num_bits is 8, expected 4"},
      {"/config_groups/group_0/weights/type", "float", "weights.type is \"float\""},
      {"/config_groups/group_0/weights/symmetric", false, "weights.symmetric is false"},
      {"/config_groups/group_0/weights/strategy", "channel", "weights.strategy is \"channel\""},
      {"/config_groups/group_0/weights/group_size", 36,
       "weights.group_size is 36, expected a mult"},
      {"/config_groups/group_0/weights/group_size", -1, "weights.group_size is -1"},
      {"/config_groups/group_0/weights/actorder", "group", "weights.actorder is \"group\""},
  };
  TestJson json = flat_target();
  json["quantization_config"] = int4_quantization();
  EXPECT_EQ(parse_target(json).quantization.group_size, 32);
  for (const BadConfig& bad : table) {
    SCOPED_TRACE(bad.pointer);
    json["quantization_config"] = changed(int4_quantization(), bad);
    expect_has(message_of([&] { parse_target(json); }), bad.expected);
  }
}

TEST(TargetConfig, BrokenTextIsOneShortLine) {
  for (const std::string text : {"", "{", "null", "[]", "{\"a\":1,\"a\":2}", "{\"a\":NaN}",
                                 "{\"a\":1e999}", "\xff\xfe", "{}"}) {
    const std::string message = message_of([&] { parse_target_config("dir/config.json", text); });
    expect_has(message, "dir/config.json: ");
    EXPECT_LT(message.size(), 250u);
  }
  const std::string deep(100000, '[');
  expect_has(message_of([&] { parse_target_config("c", deep); }), "nested deeper");
}

TEST(DraftConfig, ReadsTheTinyDrafter) {
  const DraftConfig c = load_draft_config(file("tiny-k2-dflash", ""));
  EXPECT_EQ(c.hidden_size, 256);
  EXPECT_EQ(c.n_layers, 3);
  EXPECT_EQ(c.n_heads, 8);
  EXPECT_EQ(c.n_kv_heads, 4);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.block_size, 16);
  EXPECT_EQ(c.mask_token_id, 4093);
  EXPECT_EQ(c.target_layer_ids, (std::vector<int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(c.layer_is_sliding, (std::vector<uint8_t>{0, 0, 0}));
  EXPECT_EQ(c.sliding_window, 0);
  EXPECT_EQ(c.rope.theta, 50000.0);
  EXPECT_TRUE(is_draft_dir(file("tiny-k2-dflash", "")));
  EXPECT_FALSE(is_draft_dir(file("tiny-k2", "")));
  check_pair(load_target_config(file("tiny-k2", "")), c);
}

TEST(DraftConfig, ReadsSlidingLayersAndRopeParameters) {
  const DraftConfig c = parse_draft(draft());
  EXPECT_EQ(c.layer_is_sliding, (std::vector<uint8_t>{1, 0}));
  EXPECT_EQ(c.sliding_window, 2048);
  EXPECT_EQ(c.rope.scaling, RopeConfig::Scaling::kDeepseekYarn);
  EXPECT_EQ(c.rope.theta, 50000.0);
  EXPECT_EQ(c.rope.dim, 16);
  TestJson json = draft();
  json.erase("layer_types");
  EXPECT_EQ(parse_draft(json).layer_is_sliding, (std::vector<uint8_t>{0, 0}));
  json.erase("block_size");
  json["dflash_config"]["block_size"] = 4;
  EXPECT_EQ(parse_draft(json).block_size, 4);
}

TEST(DraftConfig, ContradictionsNameFileKeyValueAndExpectation) {
  const std::vector<BadConfig> table = {
      {"/architectures", {"DFlash2DraftModel"}, "DFlash 2 drafters do not run here"},
      {"/architectures", {"DeepseekV3ForCausalLM"}, "expected [\"DFlashDraftModel\"]"},
      {"/num_attention_heads", 0, "num_attention_heads is 0"},
      {"/num_key_value_heads", 3, "num_key_value_heads is 3, expected a divisor"},
      {"/num_key_value_heads", 8, "num_key_value_heads is 8, expected an integer from 1 to 4"},
      {"/head_dim", 15, "head_dim is 15, expected an even number"},
      {"/head_dim", kErase, "head_dim is missing"},
      {"/vocab_size", 0, "vocab_size is 0"},
      {"/block_size", 1, "block_size is 1, expected an integer from 2 to 32"},
      {"/block_size", kErase, "dflash_config.block_size is missing"},
      {"/dflash_config/block_size", 9, "dflash_config.block_size is 9, expected the top level's"},
      {"/dflash_config", kErase, "dflash_config is missing, expected an object"},
      {"/dflash_config/mask_token_id", 100, "mask_token_id is 100"},
      {"/dflash_config/mask_token_id", kErase, "mask_token_id is missing"},
      {"/dflash_config/target_layer_ids", TestJson::array(), "target_layer_ids is []"},
      {"/dflash_config/target_layer_ids", {0, 3}, "below num_target_layers 3"},
      {"/dflash_config/target_layer_ids", {-1}, "target_layer_ids is [-1]"},
      {"/num_target_layers", kErase, "num_target_layers is missing"},
      {"/layer_types", {"full_attention"}, "expected num_hidden_layers 2 entries"},
      {"/layer_types", {"full_attention", "linear_attention"}, "layer_types is ["},
      {"/sliding_window", nullptr, "sliding_window is null"},
      {"/quantization_config", {{"quant_method", "fp8"}}, "quantization_config is {"},
      {"/hidden_act", "relu", "hidden_act is \"relu\""},
      {"/rope_parameters/rope_type", "llama3", "rope_parameters.rope_type is \"llama3\""},
      {"/partial_rotary_factor", 0.5, "partial_rotary_factor is 0.5"},
  };
  for (const BadConfig& bad : table) {
    SCOPED_TRACE(std::string(bad.pointer) + " " + bad.expected);
    const std::string message = message_of([&] { parse_draft(changed(draft(), bad)); });
    expect_has(message, "dir/config.json: ");
    expect_has(message, bad.expected);
  }
  TestJson json = draft();
  json.erase("layer_types");
  json["use_sliding_window"] = true;
  expect_has(message_of([&] { parse_draft(json); }), "layer_types is missing");
}

TEST(DraftConfig, PairsMustMatch) {
  const TargetConfig target = parse_target(flat_target());
  check_pair(target, parse_draft(draft()));
  for (const auto& [key, value] : std::vector<std::pair<const char*, int>>{
           {"hidden_size", 128}, {"vocab_size", 101}, {"num_target_layers", 4}}) {
    TestJson json = draft();
    json[key] = value;
    expect_has(message_of([&] { check_pair(target, parse_draft(json)); }),
               fmt::format("{} is {}, expected ", key, value));
  }
}

TEST(Config, MissingFilesAreNamed) {
  const TempDir dir;
  expect_has(message_of([&] { load_target_config(dir.path()); }), "/config.json: cannot open");
  expect_has(message_of([&] { load_draft_config(dir.path()); }), "/config.json: cannot open");
}

}  // namespace
}  // namespace kdt::checkpoint
