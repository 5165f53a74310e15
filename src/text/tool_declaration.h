// How Kimi formats show the tools of a conversation to the model.
#pragma once

#include <optional>
#include <string>

#include "base/json.h"

namespace kdt::text {

// Compact JSON with sorted keys.
std::string tools_as_json(const Json& tools);

// A TypeScript namespace with one function type per tool, as tool_declaration_ts.py of Kimi K2.5
// writes it from tools with sorted keys (described by tinker-cookbook's kimi_k2_5 renderer). None
// where the JSON schemas are beyond what that conversion knows, or no tool is a function.
std::optional<std::string> tools_as_typescript(const Json& tools);

}  // namespace kdt::text
