#include "text/json_fields.h"

#include <nlohmann/json.hpp>

#include "base/error.h"

namespace kdt::text {
namespace {

constexpr int kMaxDepth = 200;

bool too_deep(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) return true;
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
  return false;
}

void check_type(const std::string& source, const char* key, const Json& value, bool matches,
                const char* expected) {
  if (matches) return;
  throw_error(ErrorCode::kBadFile, "{}: field '{}' is {}, expected {}", source, key,
              value.is_null() ? "missing" : value.type_name(), expected);
}

}  // namespace

Json parse_json(const std::string& source, std::string_view text) {
  if (too_deep(text)) {
    throw_error(ErrorCode::kBadFile, "{}: JSON nested beyond {} levels", source, kMaxDepth);
  }
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw_error(ErrorCode::kBadFile, "{}: not valid JSON: {}", source, e.what());
  }
}

const Json& optional_field(const Json& object, const char* key) {
  static const Json null;
  if (!object.is_object()) return null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

const Json& require_object(const std::string& source, const Json& parent, const char* key) {
  const Json& value = optional_field(parent, key);
  check_type(source, key, value, value.is_object(), "object");
  return value;
}

const Json& require_array(const std::string& source, const Json& parent, const char* key) {
  const Json& value = optional_field(parent, key);
  check_type(source, key, value, value.is_array(), "array");
  return value;
}

std::string require_string(const std::string& source, const Json& parent, const char* key) {
  const Json& value = optional_field(parent, key);
  check_type(source, key, value, value.is_string(), "string");
  return value.get<std::string>();
}

bool flag_field(const std::string& source, const Json& parent, const char* key, bool fallback) {
  const Json& value = optional_field(parent, key);
  if (value.is_null()) return fallback;
  check_type(source, key, value, value.is_boolean(), "boolean");
  return value.get<bool>();
}

int32_t checked_token_id(const std::string& source, int64_t id) {
  if (id < 0 || id > kMaxTokenId) {
    throw_error(ErrorCode::kBadFile, "{}: token id {} is outside 0..{}", source, id, kMaxTokenId);
  }
  return static_cast<int32_t>(id);
}

}  // namespace kdt::text
