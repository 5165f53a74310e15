// Cases of linear, the ops that work row by row, and the experts.
#include <fmt/format.h>

#include <cmath>

#include "apps/bench_case_parts.h"

namespace kdt::apps {
namespace {

struct LinearShape {
  const char* name;
  int64_t groups, out, in;
};

BenchCase linear_case(const LinearShape& s, int32_t rows) {
  const std::string groups = s.groups > 1 ? fmt::format("{} x ", s.groups) : "";
  return make_case<LinearParams>(
      "linear", fmt::format("{:<9} {:>2} rows, {}[{}, {}] bf16", s.name, rows, groups, s.out, s.in),
      linear, [s, rows](CaseData& data) -> LinearParams {
        const int64_t x_row = s.groups * s.in, y_row = s.groups * s.out;
        return {.x = data.uniform(rows * x_row),
                .y = data.output(rows * y_row),
                .weight = data.weight(WeightFormat::kBF16, s.groups, s.out, s.in),
                .n_rows = rows,
                .x_row_stride = x_row,
                .x_group_stride = s.in,
                .y_row_stride = y_row,
                .y_group_stride = s.out};
      });
}

}  // namespace

void add_linear_cases(const BenchModel& model, std::vector<BenchCase>* cases) {
  const auto& t = model.target;
  const auto& d = model.draft;
  const int64_t features = static_cast<int64_t>(d.target_layer_ids.size()) * d.hidden_size;
  std::vector<LinearShape> shapes;
  const int64_t q_in = t.q_lora_rank ? t.q_lora_rank : t.hidden_size;
  if (t.q_lora_rank) shapes.push_back({"q_a", 1, t.q_lora_rank, t.hidden_size});
  shapes.push_back({"q_b", 1, t.n_heads * (t.qk_nope_head_dim + t.qk_rope_head_dim), q_in});
  shapes.push_back({"kv_a", 1, t.kv_lora_rank + t.qk_rope_head_dim, t.hidden_size});
  shapes.push_back({"w_uk", t.n_heads, t.kv_lora_rank, t.qk_nope_head_dim});
  shapes.push_back({"w_uv", t.n_heads, t.v_head_dim, t.kv_lora_rank});
  shapes.push_back({"o", 1, t.hidden_size, t.n_heads * t.v_head_dim});
  shapes.push_back({"mlp up", 1, t.intermediate_size, t.hidden_size});
  shapes.push_back({"mlp down", 1, t.hidden_size, t.intermediate_size});
  shapes.push_back({"router", 1, t.n_routed_experts, t.hidden_size});
  shapes.push_back({"lm_head", 1, t.vocab_size, t.hidden_size});
  shapes.push_back({"draft fc", 1, d.hidden_size, features});
  for (const LinearShape& shape : shapes)
    for (const int32_t rows : {1, kNodes}) cases->push_back(linear_case(shape, rows));
}

void add_row_cases(const BenchModel& model, std::vector<BenchCase>* cases) {
  const auto& t = model.target;
  const auto hidden = static_cast<int32_t>(t.hidden_size);
  const auto vocab = static_cast<int32_t>(t.vocab_size);
  cases->push_back(
      make_case<EmbeddingParams>("embedding", fmt::format("{} rows of {} bf16", kNodes, hidden),
                                 embedding, [=](CaseData& data) -> EmbeddingParams {
                                   // Random bits with an exponent that is neither huge nor NaN.
                                   std::vector<uint16_t> table(static_cast<size_t>(vocab) * hidden);
                                   for (size_t i = 0; i < table.size(); ++i)
                                     table[i] = 0x3c00 | (i * 40503 >> 7 & 0x81ff);
                                   return {.tokens = data.distinct_ids(1, kNodes, vocab),
                                           .table = data.put(table),
                                           .out = data.output(static_cast<size_t>(kNodes) * hidden),
                                           .n_rows = kNodes,
                                           .hidden = hidden,
                                           .vocab = vocab};
                                 }));
  cases->push_back(make_case<RmsNormParams>("rms_norm", fmt::format("{} x {}", kNodes, hidden),
                                            rms_norm, [=](CaseData& data) -> RmsNormParams {
                                              const size_t n = static_cast<size_t>(kNodes) * hidden;
                                              return {.x = data.uniform(n),
                                                      .weight = data.uniform(hidden),
                                                      .y = data.output(n),
                                                      .n_rows = kNodes,
                                                      .dim = hidden,
                                                      .x_row_stride = hidden,
                                                      .y_row_stride = hidden};
                                            }));
  const auto heads = static_cast<int32_t>(t.n_heads),
             dim = static_cast<int32_t>(t.qk_rope_head_dim);
  cases->push_back(
      make_case<RopeParams>("rope", fmt::format("{} x {} heads x {}", kNodes, heads, dim), rope,
                            [=](CaseData& data) -> RopeParams {
                              std::vector<int32_t> positions(kNodes);
                              for (int32_t i = 0; i < kNodes; ++i) positions[i] = 1000 + i / 4;
                              std::vector<float> inv_freq(dim / 2);
                              for (int32_t i = 0; i < dim / 2; ++i)
                                inv_freq[i] = std::pow(50000.0f, -2.0f * i / dim);
                              const size_t n = static_cast<size_t>(kNodes) * heads * dim;
                              return {.x = data.uniform(n),
                                      .y = data.output(n),
                                      .positions = data.put(positions),
                                      .inv_freq = data.put(inv_freq),
                                      .n_rows = kNodes,
                                      .n_heads = heads,
                                      .dim = dim,
                                      .x_row_stride = heads * dim,
                                      .x_head_stride = dim,
                                      .y_row_stride = heads * dim,
                                      .y_head_stride = dim};
                            }));
  cases->push_back(make_case<SiluMulParams>(
      "silu_mul", fmt::format("{} x {}", kNodes, t.intermediate_size), silu_mul,
      [n = kNodes * t.intermediate_size](CaseData& data) -> SiluMulParams {
        return {.gate = data.uniform(n, 4), .up = data.uniform(n), .y = data.output(n), .n = n};
      }));
}

void add_moe_cases(const BenchModel& model, std::vector<BenchCase>* cases) {
  const auto& t = model.target;
  const auto n_experts = static_cast<int32_t>(t.n_routed_experts);
  const auto n_selected = static_cast<int32_t>(t.n_experts_per_tok);
  cases->push_back(make_case<MoeRouteParams>(
      "moe_route", fmt::format("{} x {} of {} experts", kNodes, n_selected, n_experts), moe_route,
      [=](CaseData& data) -> MoeRouteParams {
        const size_t slots = static_cast<size_t>(kNodes) * n_selected;
        return {.logits = data.uniform(static_cast<size_t>(kNodes) * n_experts, 3.0f),
                .bias = data.uniform(n_experts, 0.1f),
                .ids = data.zeros<int32_t>(slots),
                .weights = data.output(slots),
                .n_rows = kNodes,
                .n_experts = n_experts,
                .n_selected = n_selected,
                .scaling_factor = 2.8f};
      }));
  const bool int4 = t.quantization.format == checkpoint::QuantizationConfig::Format::kInt4Pack;
  const WeightFormat format = int4 ? WeightFormat::kInt4Group : WeightFormat::kBF16;
  for (const int32_t rows : {1, 17, kNodes})
    cases->push_back(make_case<MoeExpertsParams>(
        "moe_experts",
        fmt::format("{:>2} rows, {} of {} experts [{}, {}] {}", rows, n_selected, n_experts,
                    t.moe_intermediate_size, t.hidden_size, int4 ? "int4" : "bf16"),
        moe_experts, [=, hidden = t.hidden_size, width = t.moe_intermediate_size](CaseData& data) {
          MoeExpertsParams p{.x = data.uniform(rows * hidden),
                             .ids = data.distinct_ids(rows, n_selected, n_experts),
                             .weights = data.uniform(static_cast<size_t>(rows) * n_selected, 0.5f),
                             .gate = data.weight(format, n_experts, width, hidden),
                             .up = data.weight(format, n_experts, width, hidden),
                             .down = data.weight(format, n_experts, hidden, width),
                             .y = data.output(rows * hidden),
                             .n_rows = rows,
                             .n_selected = n_selected};
          p.workspace = data.workspace(moe_experts_workspace(data.backend(), p));
          return p;
        }));
}

}  // namespace kdt::apps
