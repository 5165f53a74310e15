#include "checkpoint/quantization_config.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kdt::checkpoint {
namespace {

void require_text(const JsonObject& object, const std::string& key, const std::string& expected) {
  if (object.text_or(key, "") != expected) object.unsupported(key, '"' + expected + '"');
}

void require_null(const JsonObject& object, const std::string& key) {
  if (object.find(key)) object.unsupported(key, "null");
}

QuantizationConfig parse_int4_pack(const JsonObject& quantization) {
  require_text(quantization, "format", "pack-quantized");
  require_null(quantization, "kv_cache_scheme");
  const auto groups = quantization.object_or_none("config_groups");
  const auto group = groups ? groups->object_or_none("group_0") : std::nullopt;
  if (!group || quantization.find("config_groups")->size() != 1)
    quantization.unsupported("config_groups", "one entry, group_0");
  require_null(*group, "input_activations");
  require_null(*group, "output_activations");
  if (group->texts_or_empty("targets") != std::vector<std::string>{"Linear"})
    group->unsupported("targets", "[\"Linear\"]");
  const JsonObject weights = group->object("weights");
  if (weights.integer("num_bits", 1, 64) != 4) weights.unsupported("num_bits", "4");
  require_text(weights, "type", "int");
  require_text(weights, "strategy", "group");
  weights.require_default("symmetric", true);
  weights.require_default("dynamic", false);
  require_null(weights, "actorder");

  QuantizationConfig out;
  out.format = QuantizationConfig::Format::kInt4Pack;
  out.group_size = weights.integer("group_size", 8, 1 << 20);
  if (out.group_size % 8 != 0) weights.fail("group_size", "a multiple of 8");
  return out;
}

QuantizationConfig parse_fp8_block(const JsonObject& quantization) {
  quantization.require_default("fmt", "e4m3");
  quantization.require_default("activation_scheme", "dynamic");
  const Json* block = quantization.find("weight_block_size");
  if (!block || *block != Json::array({128, 128}))
    quantization.unsupported("weight_block_size", "[128, 128]");

  QuantizationConfig out;
  out.format = QuantizationConfig::Format::kFp8Block;
  out.block_size = 128;
  return out;
}

}  // namespace

QuantizationConfig parse_quantization(const JsonObject& quantization) {
  const std::string method = quantization.text_or("quant_method", "");
  if (method == "compressed-tensors") return parse_int4_pack(quantization);
  if (method == "fp8") return parse_fp8_block(quantization);
  quantization.unsupported("quant_method", "\"compressed-tensors\" or \"fp8\"");
}

}  // namespace kdt::checkpoint
