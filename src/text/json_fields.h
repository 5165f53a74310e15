// Checked access to the JSON of tokenizer files; errors name the file and the field.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/error.h"

namespace kdt::text {

using Json = nlohmann::json;

inline Json parse_json(const std::string& source, std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::exception& e) {
    throw_error(ErrorCode::kBadFile, "{}: not valid JSON: {}", source, e.what());
  }
}

// object[key], or null where it is missing.
inline const Json& optional_field(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? null : *found;
}

inline const Json& require_field(const std::string& source, const Json& object, const char* key,
                                 Json::value_t type) {
  const Json& value = optional_field(object, key);
  const bool matches =
      value.type() == type || (type == Json::value_t::number_integer && value.is_number_integer());
  if (!matches) {
    throw_error(ErrorCode::kBadFile, "{}: field '{}' is {}, expected {}", source, key,
                value.is_null() ? "missing" : value.type_name(), Json(type).type_name());
  }
  return value;
}

inline bool flag_field(const std::string& source, const Json& object, const char* key,
                       bool fallback) {
  const Json& value = optional_field(object, key);
  if (value.is_null()) return fallback;
  if (!value.is_boolean()) {
    throw_error(ErrorCode::kBadFile, "{}: field '{}' is {}, expected boolean", source, key,
                value.type_name());
  }
  return value.get<bool>();
}

// Token ids index tables that are allocated up to the largest one.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;

inline int32_t checked_token_id(const std::string& source, int64_t id) {
  if (id < 0 || id > kMaxTokenId) {
    throw_error(ErrorCode::kBadFile, "{}: token id {} is outside 0..{}", source, id, kMaxTokenId);
  }
  return static_cast<int32_t>(id);
}

}  // namespace kdt::text
