// Checked access to the JSON of tokenizer and chat files; errors (kBadFile) name the file and the
// field. Internal to this layer.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace kdt::text {

using Json = nlohmann::json;

// Objects keep their keys sorted. Nesting beyond 200 levels is refused, so that recursion over the
// result is safe.
Json parse_json(const std::string& source, std::string_view text);

const Json& optional_field(const Json& object, const char* key);  // null where it is missing
const Json& require_object(const std::string& source, const Json& parent, const char* key);
const Json& require_array(const std::string& source, const Json& parent, const char* key);
std::string require_string(const std::string& source, const Json& parent, const char* key);
bool flag_field(const std::string& source, const Json& parent, const char* key, bool fallback);

// Token ids index tables that are allocated up to the largest one.
inline constexpr int64_t kMaxTokenId = (int64_t{1} << 22) - 1;
int32_t checked_token_id(const std::string& source, int64_t id);

}  // namespace kdt::text
