#include "checkpoint/config_parts.h"

#include "base/error.h"

namespace kdt::checkpoint {

std::string first_architecture(const JsonObject& config) {
  const std::vector<std::string> names = config.texts_or_empty("architectures");
  return names.empty() ? "" : names.front();
}

void require_plain_block(const JsonObject& config) {
  config.require_default("hidden_act", "silu");
  config.require_default("attention_bias", false);
}

void require_width(const JsonObject& config, const std::string& heads_key, int64_t heads,
                   const std::string& what, int64_t dim) {
  if (heads * dim > kMaxWidth)
    config.fail(heads_key,
                fmt::format("{} times {} {} to be at most {}", heads_key, what, dim, kMaxWidth));
}

RopeConfig parse_rope(const JsonObject& config, int64_t dim, int64_t max_position_embeddings) {
  const std::string key = config.find("rope_parameters") ? "rope_parameters" : "rope_scaling";
  const std::optional<JsonObject> scaling = config.object_or_none(key);
  RopeConfig rope;
  rope.dim = dim;
  const JsonObject& theta_home = scaling && scaling->find("rope_theta") ? *scaling : config;
  rope.theta = theta_home.number_or("rope_theta", rope.theta, 1.001, 1e15);
  if (config.number_or("partial_rotary_factor", 1, 0, 1) != 1)
    config.unsupported("partial_rotary_factor", "1");
  if (!scaling) return rope;

  if (scaling->number_or("partial_rotary_factor", 1, 0, 1) != 1)
    scaling->unsupported("partial_rotary_factor", "1");
  const std::string type_key = scaling->find("rope_type") ? "rope_type" : "type";
  const std::string type = scaling->text_or(type_key, "");
  if (type == "default") return rope;
  if (type == "yarn")
    rope.scaling = RopeConfig::Scaling::kYarn;
  else if (type == "deepseek_yarn")
    rope.scaling = RopeConfig::Scaling::kDeepseekYarn;
  else
    scaling->unsupported(type_key, "\"default\", \"yarn\" or \"deepseek_yarn\"");
  rope.factor = scaling->number("factor", 1, 1e6);
  rope.original_max_position_embeddings = scaling->integer_or(
      "original_max_position_embeddings", max_position_embeddings, 1, kMaxPositions);
  rope.beta_fast = scaling->number_or("beta_fast", rope.beta_fast, 1e-6, 1e6);
  rope.beta_slow = scaling->number_or("beta_slow", rope.beta_slow, 1e-6, 1e6);
  if (rope.beta_fast < rope.beta_slow)
    scaling->fail("beta_fast", fmt::format("at least beta_slow {}", rope.beta_slow));
  rope.mscale = scaling->number_or("mscale", rope.mscale, 0, 100);
  rope.mscale_all_dim = scaling->number_or("mscale_all_dim", rope.mscale_all_dim, 0, 100);
  if (scaling->find("attention_factor"))
    rope.attention_factor = scaling->number("attention_factor", 1e-6, 1e6);
  scaling->require_default("truncate", true);
  return rope;
}

}  // namespace kdt::checkpoint
