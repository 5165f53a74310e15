// Strict reading of untrusted JSON files. nlohmann's types are only named here: a .cpp file that
// looks into a value includes <nlohmann/json.hpp> itself, and no public header includes this one.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kdt {

using Json = nlohmann::json;

// A foreign string, or a value as JSON, as one short printable piece of an error message.
std::string printable(std::string_view text);
std::string shown(const Json& value);

// kBadFile, naming `file`, for syntax errors, duplicate keys (parsers disagree on which one counts)
// and nesting deeper than 100 levels, so that recursion over the result is safe. Objects keep their
// keys sorted.
Json parse_json(std::string_view text, const std::string& file);
// The same, for text whose top level must be an object.
Json parse_object(std::string_view text, const std::string& file);

// One object of a file with the place it came from, so that every error names file, key, value and
// expectation. Cheap to copy; valid while the document lives. A value that is no object has no
// keys.
class JsonObject {
 public:
  JsonObject(const Json& object, const std::string& file, const std::string& prefix = "")
      : object_(&object), file_(file), prefix_(prefix) {}

  bool has(const std::string& key) const;
  // Null also when the key is there with a null value.
  const Json* find(const std::string& key) const;

  // Required; integers in [low, high].
  int64_t integer(const std::string& key, int64_t low, int64_t high) const;
  double number(const std::string& key, double low, double high) const;
  std::string text(const std::string& key) const;
  const Json& list(const std::string& key) const;
  JsonObject object(const std::string& key) const;
  // The fallback stands in for a missing or null key.
  int64_t integer_or(const std::string& key, int64_t fallback, int64_t low, int64_t high) const;
  double number_or(const std::string& key, double fallback, double low, double high) const;
  bool boolean_or(const std::string& key, bool fallback) const;
  std::string text_or(const std::string& key, const std::string& fallback) const;
  std::vector<std::string> texts_or_empty(const std::string& key) const;
  std::optional<JsonObject> object_or_none(const std::string& key) const;
  // Refuses any value but this one, which a missing or null key stands for.
  void require_default(const std::string& key, const char* value) const;
  void require_default(const std::string& key, bool value) const;

  // Throws kBadFile / kUnsupported: "FILE: KEY is VALUE, expected EXPECTATION".
  [[noreturn]] void fail(const std::string& key, const std::string& expectation) const;
  [[noreturn]] void unsupported(const std::string& key, const std::string& expectation) const;

 private:
  std::string complaint(const std::string& key, const std::string& expectation) const;

  const Json* object_;
  std::string file_;
  std::string prefix_;  // "text_config." and the like
};

}  // namespace kdt
