#include "checkpoint/inspect.h"

#include <array>
#include <unordered_set>

#include "base/error.h"
#include "base/json.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/expected_weights.h"
#include "checkpoint/linear_source.h"

namespace kdt::checkpoint {
namespace {

constexpr const char* kKindNames[kWeightKindCount] = {
    "embedding",          "attention", "dense mlp", "router",  "routed experts", "shared experts",
    "feature projection", "head",      "norms",     "skipped", "unexpected"};

// The tensors a Linear may consist of, over all formats.
constexpr const char* kLinearParts[] = {".weight", ".weight_packed", ".weight_scale",
                                        ".weight_shape", ".weight_scale_inv"};

bool is_scale_or_shape(std::string_view name) {
  return name.ends_with(".weight_scale") || name.ends_with(".weight_shape") ||
         name.ends_with(".weight_scale_inv");
}

int64_t count_parameters(const TensorView& tensor) {
  if (is_scale_or_shape(tensor.name)) return 0;
  return tensor.name.ends_with(".weight_packed") ? tensor.numel() * 8 : tensor.numel();
}

// Compares a checkpoint with the weights its config asks for.
class Inspection {
 public:
  Inspection(const Checkpoint& checkpoint, QuantizationConfig quantization, InspectReport& report)
      : checkpoint_(checkpoint), quantization_(std::move(quantization)), report_(report) {
    for (int i = 0; i < kWeightKindCount; ++i) totals_[i].kind = kKindNames[i];
  }

  void check(const ExpectedWeight& weight) {
    const size_t used_before = used_.size();
    if (!weight.is_linear) {
      use(weight.kind, weight.name);
    } else {
      for (const char* part : kLinearParts) use(weight.kind, weight.name + part);
    }
    if (used_.size() == used_before) {
      report_.missing.add(fmt::format("{}{} [{}]", weight.name, weight.is_linear ? ".weight" : "",
                                      fmt::join(weight.shape, ", ")));
      return;
    }
    try {
      if (weight.is_linear)
        load_linear(checkpoint_, quantization_, weight.name, weight.shape[0], weight.shape[1]);
      else
        checkpoint_.get(weight.name, weight.shape, {DType::kF32, DType::kBF16, DType::kF16});
    } catch (const Error& error) {
      report_.wrong.add(error.what());
    }
  }

  // Files the tensors that no expected weight used, and the totals.
  template <typename IsSkipped>
  void finish(IsSkipped is_skipped_name) {
    for (const TensorView* tensor : checkpoint_.tensors()) {
      if (used_.count(tensor)) continue;
      const bool skipped = is_skipped_name(tensor->name);
      count(skipped ? WeightKind::kSkipped : WeightKind::kUnexpected, *tensor);
      if (!skipped)
        report_.unexpected.add(fmt::format("{} {}", printable(tensor->name), describe(*tensor)));
    }
    for (const InspectTotals& totals : totals_)
      if (totals.tensors > 0) report_.kinds.push_back(totals);
  }

 private:
  void use(WeightKind kind, const std::string& name) {
    const TensorView* tensor = checkpoint_.find(name);
    if (tensor && used_.insert(tensor).second) count(kind, *tensor);
  }

  void count(WeightKind kind, const TensorView& tensor) {
    InspectTotals& totals = totals_[static_cast<size_t>(kind)];
    ++totals.tensors;
    totals.parameters += count_parameters(tensor);
    totals.bytes += static_cast<int64_t>(tensor.data.size());
  }

  const Checkpoint& checkpoint_;
  QuantizationConfig quantization_;
  InspectReport& report_;
  std::array<InspectTotals, kWeightKindCount> totals_;
  std::unordered_set<const TensorView*> used_;
};

std::string describe_rope(const RopeConfig& rope) {
  if (rope.scaling == RopeConfig::Scaling::kNone) return fmt::format("theta {:g}", rope.theta);
  return fmt::format("theta {:g}, {} x{:g} over {} positions, beta {:g}/{:g}", rope.theta,
                     rope.scaling == RopeConfig::Scaling::kYarn ? "yarn" : "deepseek_yarn",
                     rope.factor, rope.original_max_position_embeddings, rope.beta_fast,
                     rope.beta_slow);
}

std::string describe_quantization(const QuantizationConfig& quantization) {
  switch (quantization.format) {
    case QuantizationConfig::Format::kNone:
      return "none";
    case QuantizationConfig::Format::kInt4Pack:
      return fmt::format("INT4 pack-quantized, groups of {}", quantization.group_size);
    case QuantizationConfig::Format::kFp8Block:
      return fmt::format("FP8 e4m3, blocks of {0}x{0}", quantization.block_size);
  }
  return "";
}

std::vector<std::string> describe_architecture(const TargetConfig& c) {
  int64_t n_moe = 0;
  for (int64_t i = 0; i < c.n_layers; ++i) n_moe += is_moe_layer(c, i);
  const std::string q_rank = c.q_lora_rank ? std::to_string(c.q_lora_rank) : "none";
  return {
      "target        DeepseekV3ForCausalLM",
      fmt::format("layers        {} ({} dense of width {}, {} MoE)", c.n_layers, c.n_layers - n_moe,
                  c.intermediate_size, n_moe),
      fmt::format("hidden        {}", c.hidden_size),
      fmt::format("attention     MLA: {} heads, query rank {}, latent {} + rope {}, head {} + {}, "
                  "value {}",
                  c.n_heads, q_rank, c.kv_lora_rank, c.qk_rope_head_dim, c.qk_nope_head_dim,
                  c.qk_rope_head_dim, c.v_head_dim),
      fmt::format(
          "experts       {} of width {}, {} per token, {} shared; {} of {} groups, sigmoid x{:g}",
          c.n_routed_experts, c.moe_intermediate_size, c.n_experts_per_tok, c.n_shared_experts,
          c.topk_group, c.n_group, c.routed_scaling_factor),
      fmt::format("rope          {}", describe_rope(c.rope)),
      fmt::format(
          "vocabulary    {}, stop tokens {}", c.vocab_size,
          c.stop_token_ids.empty() ? "none" : fmt::format("{}", fmt::join(c.stop_token_ids, ", "))),
      fmt::format("context       {}", c.max_position_embeddings),
      fmt::format("quantization  {}", describe_quantization(c.quantization)),
  };
}

std::vector<std::string> describe_architecture(const DraftConfig& c) {
  int64_t n_sliding = 0;
  for (const uint8_t is_sliding : c.layer_is_sliding) n_sliding += is_sliding;
  return {
      "drafter       DFlash",
      fmt::format("layers        {} ({})", c.n_layers,
                  n_sliding ? fmt::format("{} sliding, window {}", n_sliding, c.sliding_window)
                            : "no sliding window"),
      fmt::format("hidden        {}, mlp {}", c.hidden_size, c.intermediate_size),
      fmt::format("attention     {} heads, {} key/value heads of width {}", c.n_heads, c.n_kv_heads,
                  c.head_dim),
      fmt::format("block         {} tokens, mask token {}", c.block_size, c.mask_token_id),
      fmt::format("features      layers {} of {}", fmt::join(c.target_layer_ids, ", "),
                  c.n_target_layers),
      fmt::format("rope          {}", describe_rope(c.rope)),
      fmt::format("vocabulary    {}", c.vocab_size),
      fmt::format("context       {}", c.max_position_embeddings),
  };
}

// 1234567 -> "1,234,567"
std::string grouped(int64_t value) {
  std::string text = std::to_string(value);
  for (int64_t i = static_cast<int64_t>(text.size()) - 3; i > 0; i -= 3)
    text.insert(static_cast<size_t>(i), ",");
  return text;
}

void append_findings(std::string& out, const char* what, const InspectFindings& findings) {
  if (findings.count == 0) return;
  out += fmt::format("{} {}:\n", grouped(findings.count), what);
  for (const std::string& text : findings.first) out += fmt::format("  {}\n", text);
  const int64_t hidden = findings.count - static_cast<int64_t>(findings.first.size());
  if (hidden > 0) out += fmt::format("  ... and {} more\n", grouped(hidden));
}

}  // namespace

void InspectFindings::add(std::string text) {
  if (count++ < kKept) first.push_back(std::move(text));
}

InspectReport inspect_checkpoint(const std::string& dir) {
  InspectReport report;
  report.dir = dir;
  if (is_draft_dir(dir)) {
    const DraftConfig config = load_draft_config(dir);
    const Checkpoint checkpoint(dir);
    Inspection inspection(checkpoint, {}, report);
    visit_expected_weights(config, [&](const ExpectedWeight& w) { inspection.check(w); });
    inspection.finish([](std::string_view name) { return name.ends_with("rotary_emb.inv_freq"); });
    report.architecture = describe_architecture(config);
    report.kv_elements_per_token = config.n_layers * 2 * config.n_kv_heads * config.head_dim;
    report.kv_formula = fmt::format("{} layers x 2 x {} heads x {}", config.n_layers,
                                    config.n_kv_heads, config.head_dim);
  } else {
    const TargetConfig config = load_target_config(dir);
    const Checkpoint checkpoint(dir);
    Inspection inspection(checkpoint, config.quantization, report);
    visit_expected_weights(config, [&](const ExpectedWeight& w) { inspection.check(w); });
    inspection.finish([&](std::string_view name) { return is_skipped(config, name); });
    report.architecture = describe_architecture(config);
    report.kv_elements_per_token =
        config.n_layers * (config.kv_lora_rank + config.qk_rope_head_dim);
    report.kv_formula = fmt::format("{} layers x {}", config.n_layers,
                                    config.kv_lora_rank + config.qk_rope_head_dim);
  }
  return report;
}

std::string format_report(const InspectReport& report) {
  std::string out = report.dir + "\n";
  for (const std::string& line : report.architecture) out += "  " + line + "\n";
  out += fmt::format("  KV per token  {} x 4 = {} bytes in fp32, {} in bf16\n\n", report.kv_formula,
                     grouped(report.kv_elements_per_token * 4),
                     grouped(report.kv_elements_per_token * 2));
  constexpr const char* kRow = "  {:<20}{:>10}{:>20}{:>20}\n";
  out += fmt::format(kRow, "weights", "tensors", "parameters", "bytes");
  InspectTotals total{.kind = "total"};
  for (const InspectTotals& kind : report.kinds) {
    out += fmt::format(kRow, kind.kind, grouped(kind.tensors), grouped(kind.parameters),
                       grouped(kind.bytes));
    total.tensors += kind.tensors;
    total.parameters += kind.parameters;
    total.bytes += kind.bytes;
  }
  out += fmt::format(kRow, total.kind, grouped(total.tensors), grouped(total.parameters),
                     grouped(total.bytes));
  out += '\n';
  append_findings(out, "missing", report.missing);
  append_findings(out, "wrong", report.wrong);
  append_findings(out, "unexpected, ignored", report.unexpected);
  if (report.complete()) out += "complete: every tensor the config asks for is here\n";
  return out;
}

}  // namespace kdt::checkpoint
