#include "text/tool_declaration.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/error.h"

namespace kdt::text {
namespace {

// A schema that has no TypeScript form; the caller falls back to JSON.
struct NoTypescript {};

constexpr std::string_view kIndent = "  ";

// Null where it is missing.
const Json& optional_field(const Json& object, const char* key) {
  static const Json null;
  const auto found = object.find(key);
  return found == object.end() ? null : *found;
}

std::string join(const std::vector<std::string>& parts, std::string_view separator) {
  return fmt::format("{}", fmt::join(parts, separator));
}

// json.dumps(value, ensure_ascii=False).
std::string python_json(const Json& value) {
  std::vector<std::string> parts;
  if (value.is_array()) {
    for (const Json& item : value) parts.push_back(python_json(item));
    return "[" + join(parts, ", ") + "]";
  }
  if (value.is_object()) {
    for (const auto& [key, item] : value.items()) {
      parts.push_back(Json(key).dump() + ": " + python_json(item));
    }
    return "{" + join(parts, ", ") + "}";
  }
  return value.dump();
}

// str(value) of a scalar.
std::string python_str(const Json& value) {
  if (value.is_string()) return value.get<std::string>();
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_null()) return "None";
  if (!value.is_number()) throw NoTypescript{};
  return value.dump();
}

// Python's truth value.
bool truthy(const Json& value) {
  if (value.is_null()) return false;
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value != 0;
  if (value.is_string()) return value != "";
  return !value.empty();
}

std::string comment_lines(const Json& description, const std::string& indent) {
  if (!truthy(description)) return "";
  if (!description.is_string()) throw NoTypescript{};
  std::string out;
  std::string_view rest = description.get_ref<const std::string&>();
  while (true) {
    const size_t end = std::min(rest.find('\n'), rest.size());
    if (end > 0) out += fmt::format("{}// {}", indent, rest.substr(0, end));
    if (end == rest.size()) return out;
    out += '\n';
    rest.remove_prefix(end + 1);
  }
}

// Converts the schemas of one function. Definitions become interfaces of their own.
class FunctionWriter {
 public:
  std::string write(const Json& function) {
    const Json& given = optional_field(function, "parameters");
    const Json parameters = truthy(given) ? given : Json::object();
    if (!parameters.is_object()) throw NoTypescript{};
    const std::string shape = object_type(parameters, "");
    const bool refers_to_itself = has_self_reference_;

    std::vector<std::string> parts;
    if (refers_to_itself) {
      std::vector<std::string> fields;
      for (const auto& [name, schema] : object_field(parameters, "properties").items()) {
        fields.push_back(field(parameters, name, schema, std::string(kIndent)));
      }
      parts.push_back(fields.empty() ? "interface parameters {}"
                                     : "interface parameters {\n" + join(fields, ",\n") + "\n}");
    }
    const std::map<std::string, Json> definitions = definitions_;  // nested ones are not written
    for (const auto& [name, schema] : definitions) {
      if (!schema.is_object()) throw NoTypescript{};
      const std::string comment = comment_lines(optional_field(schema, "description"), "");
      parts.push_back(fmt::format("{}{}interface {} {}", comment, comment.empty() ? "" : "\n", name,
                                  type(schema, "")));
    }
    const std::string comment = comment_lines(optional_field(function, "description"), "");
    if (!comment.empty()) parts.push_back(comment);
    const Json& name = optional_field(function, "name");
    parts.push_back(fmt::format("type {} = (_: {}) => any;",
                                name.is_null() ? "function" : python_str(name),
                                refers_to_itself ? "parameters" : shape));
    return join(parts, "\n");
  }

 private:
  static const Json& object_field(const Json& schema, const char* key) {
    const Json& value = optional_field(schema, key);
    if (!value.is_null() && !value.is_object()) throw NoTypescript{};
    return value;
  }

  // The comment lines above a field or array item: description, then constraints.
  std::string docstring(const Json& schema, const std::string& indent) {
    if (!schema.is_object()) return "";
    std::string out = comment_lines(optional_field(schema, "description"), indent);
    if (!out.empty()) out += '\n';
    std::vector<std::string> constraints;
    for (const char* key : constraint_keys(schema)) {
      const auto found = schema.find(key);
      if (found != schema.end()) {
        constraints.push_back(fmt::format("{}: {}", key, python_str(*found)));
      }
    }
    if (!constraints.empty()) out += fmt::format("{}// {}\n", indent, join(constraints, ", "));
    return out;
  }

  static std::vector<const char*> constraint_keys(const Json& schema) {
    for (const char* other : {"$ref", "anyOf", "enum"}) {
      if (schema.contains(other)) return {};
    }
    const Json& type = optional_field(schema, "type");
    if (type == "string") return {"maxLength", "minLength", "pattern"};
    if (type == "number" || type == "integer") return {"maximum", "minimum"};
    if (type == "array") return {"maxItems", "minItems"};
    return {};
  }

  std::string type(const Json& schema, const std::string& indent) {
    if (schema.is_boolean()) return schema.get<bool>() ? "any" : "null";
    if (!schema.is_object()) throw NoTypescript{};
    if (schema.contains("$ref")) return reference(schema["$ref"]);
    if (schema.contains("anyOf")) return any_of(schema["anyOf"], indent);
    if (schema.contains("enum")) return enumeration(schema);
    if (schema.empty()) return "any";
    const Json& kind = optional_field(schema, "type");
    if (kind.is_array()) return type_union(kind);
    if (!kind.is_string()) throw NoTypescript{};
    if (kind == "object") return object_type(schema, indent);
    if (kind == "array") return array_type(schema, indent);
    return kind == "integer" ? "number" : kind.get<std::string>();
  }

  std::string reference(const Json& target) {
    if (!target.is_string()) throw NoTypescript{};
    const auto& text = target.get_ref<const std::string&>();
    if (text == "#") {
      has_self_reference_ = true;
      return "parameters";
    }
    const std::string name = text.substr(text.rfind('/') + 1);
    if (!text.starts_with("#/$defs/") || !definitions_.contains(name)) throw NoTypescript{};
    return name;
  }

  std::string any_of(const Json& options, const std::string& indent) {
    if (!options.is_array()) throw NoTypescript{};
    std::vector<std::string> parts;
    for (const Json& option : options) parts.push_back(type(option, indent));
    return join(parts, " | ");
  }

  static std::string enumeration(const Json& schema) {
    const Json& values = schema["enum"];
    if (!values.is_array()) throw NoTypescript{};
    check_enumeration(optional_field(schema, "type"), values);
    std::vector<std::string> parts;
    for (const Json& value : values) {
      parts.push_back(value.is_string() ? '"' + value.get<std::string>() + '"' : python_str(value));
    }
    return join(parts, " | ");
  }

  // The declared type of an enum is one type, alone or in a list, or a pair of it and "null".
  static void check_enumeration(const Json& declared, const Json& values) {
    Json kind = declared;
    if (declared.is_array()) {
      if (declared.empty() || declared.size() > 2) throw NoTypescript{};
      const bool has_null = std::find(declared.begin(), declared.end(), "null") != declared.end();
      if (declared.size() == 2 && !has_null) throw NoTypescript{};
      kind = declared.size() == 2 && declared[0] == "null" ? declared[1] : declared[0];
    }
    for (const Json& value : values) {
      if (value.is_null()) continue;
      // In Python a bool is an int.
      const bool integer = value.is_number_integer() || value.is_boolean();
      if ((kind == "string" && !value.is_string()) ||
          (kind == "number" && !integer && !value.is_number()) || (kind == "integer" && !integer) ||
          (kind == "boolean" && !value.is_boolean())) {
        throw NoTypescript{};
      }
    }
  }

  static std::string type_union(const Json& kinds) {
    static const std::map<std::string, std::string> kNames = {
        {"string", "string"}, {"number", "number"}, {"integer", "number"},  {"boolean", "boolean"},
        {"null", "null"},     {"object", "{}"},     {"array", "Array<any>"}};
    std::vector<std::string> parts;
    for (const Json& kind : kinds) {
      const auto found = kind.is_string() ? kNames.find(kind.get<std::string>()) : kNames.end();
      if (found == kNames.end()) throw NoTypescript{};
      parts.push_back(found->second);
    }
    return join(parts, " | ");
  }

  std::string array_type(const Json& schema, const std::string& indent) {
    const Json& items = optional_field(schema, "items");
    if (!truthy(items)) return "Array<any>";
    const std::string inner = indent + std::string(kIndent);
    const std::string comment = docstring(items, inner);
    if (comment.empty()) return "Array<" + type(items, indent) + ">";
    return "Array<\n" + comment + inner + type(items, inner) + "\n" + indent + ">";
  }

  std::string object_type(const Json& schema, const std::string& indent) {
    for (const auto& [name, definition] : object_field(schema, "$defs").items()) {
      definitions_.insert_or_assign(name, definition);
    }
    const std::string inner = indent + std::string(kIndent);
    std::vector<std::string> fields, optional_fields;
    for (const auto& [name, property] : object_field(schema, "properties").items()) {
      (is_required(schema, name) ? fields : optional_fields)
          .push_back(field(schema, name, property, inner));
    }
    fields.insert(fields.end(), optional_fields.begin(), optional_fields.end());
    const Json& rest = optional_field(schema, "additionalProperties");
    if (rest.is_boolean()) {
      fields.push_back(inner + "[k: string]: " + (rest.get<bool>() ? "any" : "never"));
    } else if (!rest.is_null()) {
      fields.push_back(inner + "[k: string]: " + type(rest, inner));
    }
    return fields.empty() ? "{}" : "{\n" + join(fields, ",\n") + "\n" + indent + "}";
  }

  static bool is_required(const Json& schema, const std::string& name) {
    const Json& required = optional_field(schema, "required");
    return std::find(required.begin(), required.end(), name) != required.end();
  }

  std::string field(const Json& parent, const std::string& name, const Json& schema,
                    const std::string& indent) {
    std::string out = docstring(schema, indent);
    const Json& fallback = optional_field(schema, "default");
    if (!fallback.is_null()) {
      const bool scalar = fallback.is_number() || fallback.is_boolean();
      out += fmt::format("{}// Default: {}\n", indent,
                         scalar ? python_str(fallback) : python_json(fallback));
    }
    return out + fmt::format("{}{}{}: {}", indent, name, is_required(parent, name) ? "" : "?",
                             type(schema, indent));
  }

  std::map<std::string, Json> definitions_;
  bool has_self_reference_ = false;
};

}  // namespace

std::string tools_as_json(const Json& tools) {
  return tools.dump();
}

std::optional<std::string> tools_as_typescript(const Json& tools) {
  std::vector<std::string> functions;
  try {
    for (const Json& tool : tools) {
      const Json& function = optional_field(tool, "function");
      if (optional_field(tool, "type") == "function" && truthy(function)) {
        functions.push_back(FunctionWriter().write(function));
      }
    }
  } catch (const NoTypescript&) {
    return std::nullopt;
  }
  if (functions.empty()) return std::nullopt;
  return "# Tools\n\n## functions\nnamespace functions {\n" + join(functions, "\n") + "\n}\n";
}

}  // namespace kdt::text
