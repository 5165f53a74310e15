#include "apps/bench_case_parts.h"

namespace kdt::apps {

BenchModel tiny_bench_model() {
  BenchModel model{.name = "tiny-k2"};
  auto& t = model.target;
  t.hidden_size = 256;
  t.n_layers = 5;
  t.n_heads = 4;
  t.q_lora_rank = 128;
  t.kv_lora_rank = 512;
  t.qk_nope_head_dim = 128;
  t.qk_rope_head_dim = 64;
  t.v_head_dim = 128;
  t.n_routed_experts = 16;
  t.n_experts_per_tok = 4;
  t.moe_intermediate_size = 128;
  t.intermediate_size = 512;
  t.vocab_size = 4096;
  t.quantization = {checkpoint::QuantizationConfig::Format::kInt4Pack, 32};
  auto& d = model.draft;
  d.hidden_size = 256;
  d.n_heads = 8;
  d.n_kv_heads = 4;
  d.head_dim = 64;
  d.block_size = 16;
  d.target_layer_ids = {0, 1, 2, 3};
  return model;
}

BenchModel k26_shard_bench_model() {
  BenchModel model{.name = "Kimi K2.6, one of 8 shards"};
  auto& t = model.target;
  t.hidden_size = 7168;
  t.n_layers = 61;
  t.n_heads = 8;
  t.q_lora_rank = 1536;
  t.kv_lora_rank = 512;
  t.qk_nope_head_dim = 128;
  t.qk_rope_head_dim = 64;
  t.v_head_dim = 128;
  t.n_routed_experts = 16;  // of the shard's 48: two times a token's experts, in a third of the memory
  t.n_experts_per_tok = 8;
  t.moe_intermediate_size = 2048;
  t.intermediate_size = 18432 / 8;
  t.vocab_size = 163840 / 8;
  t.quantization = {checkpoint::QuantizationConfig::Format::kInt4Pack, 32};
  auto& d = model.draft;
  d.hidden_size = 7168;
  d.n_heads = 8;
  d.n_kv_heads = 1;
  d.head_dim = 128;
  d.block_size = 8;
  d.target_layer_ids = {1, 12, 24, 35, 47, 58};
  return model;
}

std::vector<BenchCase> bench_cases(const BenchModel& model) {
  std::vector<BenchCase> cases;
  add_linear_cases(model, &cases);
  add_row_cases(model, &cases);
  add_moe_cases(model, &cases);
  add_attention_cases(model, &cases);
  add_draft_cases(model, &cases);
  add_accept_cases(model, &cases);
  return cases;
}

std::vector<std::string> bench_op_names() {
  std::vector<std::string> names;
  for (const BenchCase& c : bench_cases(tiny_bench_model()))
    if (names.empty() || names.back() != c.op) names.push_back(c.op);
  return names;
}

}  // namespace kdt::apps
