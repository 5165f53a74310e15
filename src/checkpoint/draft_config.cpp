#include <filesystem>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "checkpoint/config.h"
#include "checkpoint/config_parts.h"

namespace kdt::checkpoint {
namespace {

constexpr int64_t kMaxBlock = 32;  // the root and the deepest tree, 31

std::string config_path(const std::string& dir) {
  return (std::filesystem::path(dir) / "config.json").string();
}

void require_dflash(const JsonObject& top) {
  const std::string architecture = first_architecture(top);
  if (architecture == "DFlashDraftModel") return;
  if (architecture == "DFlash2DraftModel")
    top.unsupported("architectures", "[\"DFlashDraftModel\"]: DFlash 2 drafters do not run here");
  top.unsupported("architectures", "[\"DFlashDraftModel\"]");
}

void parse_sizes(const JsonObject& top, DraftConfig& config) {
  config.hidden_size = top.integer("hidden_size", 1, kMaxWidth);
  config.n_layers = top.integer("num_hidden_layers", 1, kMaxLayers);
  config.n_heads = top.integer("num_attention_heads", 1, kMaxWidth);
  config.n_kv_heads = top.integer("num_key_value_heads", 1, config.n_heads);
  if (config.n_heads % config.n_kv_heads != 0)
    top.fail("num_key_value_heads",
             fmt::format("a divisor of num_attention_heads {}", config.n_heads));
  config.head_dim = top.integer("head_dim", 2, kMaxHeadDim);
  if (config.head_dim % 2 != 0) top.fail("head_dim", "an even number");
  require_width(top, "num_attention_heads", config.n_heads, "head_dim", config.head_dim);
  config.intermediate_size = top.integer("intermediate_size", 1, kMaxWidth);
  config.vocab_size = top.integer("vocab_size", 1, kMaxVocab);
  config.rms_norm_eps = static_cast<float>(top.number_or("rms_norm_eps", 1e-6, 0, 1));
  config.max_position_embeddings = top.integer("max_position_embeddings", 1, kMaxPositions);
}

void parse_dflash(const JsonObject& top, DraftConfig& config) {
  const JsonObject dflash = top.object("dflash_config");
  const JsonObject& block_home = top.find("block_size") ? top : dflash;
  config.block_size = block_home.integer("block_size", 2, kMaxBlock);
  if (dflash.integer_or("block_size", config.block_size, 2, kMaxBlock) != config.block_size)
    dflash.fail("block_size", fmt::format("the top level's block_size {}", config.block_size));
  config.mask_token_id =
      static_cast<int32_t>(dflash.integer("mask_token_id", 0, config.vocab_size - 1));
  config.n_target_layers = top.integer("num_target_layers", 1, kMaxLayers);
  const Json* ids = dflash.find("target_layer_ids");
  const std::string expectation =
      fmt::format("1 to 64 layer indices below num_target_layers {}", config.n_target_layers);
  if (!ids || !ids->is_array() || ids->empty() || ids->size() > 64)
    dflash.fail("target_layer_ids", expectation);
  for (const Json& id : *ids) {
    const bool fits = id.is_number_unsigned() &&
                      id.get<uint64_t>() < static_cast<uint64_t>(config.n_target_layers);
    if (!fits) dflash.fail("target_layer_ids", expectation);
    config.target_layer_ids.push_back(id.get<int64_t>());
  }
}

void parse_layer_types(const JsonObject& top, DraftConfig& config) {
  if (!top.find("layer_types")) {
    // Qwen3's other way to ask for windows, by first layer; no DFlash drafter uses it.
    if (top.boolean_or("use_sliding_window", false)) top.fail("layer_types", "a list");
    config.layer_is_sliding.assign(static_cast<size_t>(config.n_layers), 0);
    return;
  }
  const std::vector<std::string> types = top.texts_or_empty("layer_types");
  if (static_cast<int64_t>(types.size()) != config.n_layers)
    top.fail("layer_types", fmt::format("num_hidden_layers {} entries", config.n_layers));
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      top.unsupported("layer_types", "\"full_attention\" or \"sliding_attention\" entries");
    const bool is_sliding = type == "sliding_attention";
    config.layer_is_sliding.push_back(is_sliding);
    if (is_sliding) config.sliding_window = top.integer("sliding_window", 1, kMaxPositions);
  }
}

}  // namespace

DraftConfig parse_draft_config(const std::string& path, const std::string& config_json) {
  const Json document = parse_object(config_json, path);
  const JsonObject top(document, path);
  DraftConfig config;
  config.path = path;
  require_dflash(top);
  require_plain_block(top);
  if (top.find("quantization_config")) top.unsupported("quantization_config", "null");
  parse_sizes(top, config);
  parse_dflash(top, config);
  parse_layer_types(top, config);
  config.rope = parse_rope(top, config.head_dim, config.max_position_embeddings);
  return config;
}

DraftConfig load_draft_config(const std::string& dir) {
  const std::string path = config_path(dir);
  return parse_draft_config(path, read_text_file(path, kMaxConfigBytes));
}

bool is_draft_dir(const std::string& dir) {
  const std::string path = config_path(dir);
  const Json document = parse_object(read_text_file(path, kMaxConfigBytes), path);
  return first_architecture(JsonObject(document, path)).starts_with("DFlash");
}

void check_pair(const TargetConfig& target, const DraftConfig& draft) {
  const auto require_same = [&](const char* key, int64_t found, int64_t expected) {
    if (found != expected)
      throw_error(ErrorCode::kInvalidArgument,
                  "{}: {} is {}, expected {} as in {}; drafter and target do not belong together",
                  draft.path, key, found, expected, target.path);
  };
  require_same("hidden_size", draft.hidden_size, target.hidden_size);
  require_same("vocab_size", draft.vocab_size, target.vocab_size);
  require_same("num_target_layers", draft.n_target_layers, target.n_layers);
}

}  // namespace kdt::checkpoint
