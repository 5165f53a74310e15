#include "base/json.h"

#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/error.h"

namespace kdt {
namespace {

constexpr size_t kMaxShown = 80;
constexpr int kMaxDepth = 100;

// Rejects what the parser would accept silently.
class StrictCallback {
 public:
  explicit StrictCallback(const std::string& file) : file_(file) {}

  bool operator()(int depth, Json::parse_event_t event, const Json& value) {
    switch (event) {
      case Json::parse_event_t::object_start:
        keys_.emplace_back();
        [[fallthrough]];
      case Json::parse_event_t::array_start:
        if (depth >= kMaxDepth)
          throw_error(ErrorCode::kBadFile, "{}: JSON nested deeper than {} levels", file_,
                      kMaxDepth);
        break;
      case Json::parse_event_t::object_end:
        keys_.pop_back();
        break;
      case Json::parse_event_t::key:
        if (!keys_.back().insert(value.get<std::string>()).second)
          throw_error(ErrorCode::kBadFile, "{}: duplicate key {}", file_, shown(value));
        break;
      default:
        break;
    }
    return true;
  }

 private:
  const std::string& file_;
  std::vector<std::unordered_set<std::string>> keys_;
};

}  // namespace

std::string printable(std::string_view text) {
  std::string out;
  for (const char c : text.substr(0, kMaxShown)) {
    const auto byte = static_cast<unsigned char>(c);
    out += byte < 0x20 || byte == 0x7f ? '?' : c;
  }
  if (text.size() > kMaxShown) out += "...";
  return out;
}

std::string shown(const Json& value) {
  return printable(value.dump(-1, ' ', false, Json::error_handler_t::replace));
}

Json parse_json(std::string_view text, const std::string& file) {
  try {
    return Json::parse(text.begin(), text.end(), StrictCallback(file));
  } catch (const Json::exception& e) {
    // Drop the library's "[json.exception.parse_error.101] " in front of the reason.
    const std::string_view what = e.what();
    const size_t bracket = what.find("] ");
    throw_error(ErrorCode::kBadFile, "{}: not valid JSON: {}", file,
                printable(bracket == what.npos ? what : what.substr(bracket + 2)));
  }
}

Json parse_object(std::string_view text, const std::string& file) {
  Json document = parse_json(text, file);
  if (!document.is_object())
    throw_error(ErrorCode::kBadFile, "{}: a JSON object was expected, found {}", file,
                document.type_name());
  return document;
}

bool JsonObject::has(const std::string& key) const {
  return object_->contains(key);
}

const Json* JsonObject::find(const std::string& key) const {
  const auto it = object_->find(key);
  return it == object_->end() || it->is_null() ? nullptr : &*it;
}

std::string JsonObject::complaint(const std::string& key, const std::string& expectation) const {
  const auto it = object_->find(key);
  return it == object_->end()
             ? fmt::format("{}: {}{} is missing, expected {}", file_, prefix_, key, expectation)
             : fmt::format("{}: {}{} is {}, expected {}", file_, prefix_, key, shown(*it),
                           expectation);
}

void JsonObject::fail(const std::string& key, const std::string& expectation) const {
  throw Error(ErrorCode::kBadFile, complaint(key, expectation));
}

void JsonObject::unsupported(const std::string& key, const std::string& expectation) const {
  throw Error(ErrorCode::kUnsupported, complaint(key, expectation));
}

int64_t JsonObject::integer(const std::string& key, int64_t low, int64_t high) const {
  const Json* value = find(key);
  const bool fits = value && value->is_number_integer() &&
                    !(value->is_number_unsigned() && value->get<uint64_t>() > INT64_MAX);
  if (!fits || value->get<int64_t>() < low || value->get<int64_t>() > high)
    fail(key, fmt::format("an integer from {} to {}", low, high));
  return value->get<int64_t>();
}

std::string JsonObject::text(const std::string& key) const {
  const Json* value = find(key);
  if (!value || !value->is_string()) fail(key, "a string");
  return value->get<std::string>();
}

const Json& JsonObject::list(const std::string& key) const {
  const Json* value = find(key);
  if (!value || !value->is_array()) fail(key, "a list");
  return *value;
}

JsonObject JsonObject::object(const std::string& key) const {
  const Json* value = find(key);
  if (!value || !value->is_object()) fail(key, "an object");
  return JsonObject(*value, file_, prefix_ + key + ".");
}

int64_t JsonObject::integer_or(const std::string& key, int64_t fallback, int64_t low,
                               int64_t high) const {
  return find(key) ? integer(key, low, high) : fallback;
}

double JsonObject::number(const std::string& key, double low, double high) const {
  const Json* value = find(key);
  if (!value || !value->is_number() || !(value->get<double>() >= low) ||
      !(value->get<double>() <= high))
    fail(key, fmt::format("a number from {:g} to {:g}", low, high));
  return value->get<double>();
}

double JsonObject::number_or(const std::string& key, double fallback, double low,
                             double high) const {
  return find(key) ? number(key, low, high) : fallback;
}

bool JsonObject::boolean_or(const std::string& key, bool fallback) const {
  const Json* value = find(key);
  if (value && !value->is_boolean()) fail(key, "true or false");
  return value ? value->get<bool>() : fallback;
}

std::string JsonObject::text_or(const std::string& key, const std::string& fallback) const {
  return find(key) ? text(key) : fallback;
}

std::vector<std::string> JsonObject::texts_or_empty(const std::string& key) const {
  std::vector<std::string> out;
  if (!find(key)) return out;
  for (const Json& item : list(key)) {
    if (!item.is_string()) fail(key, "a list of strings");
    out.push_back(item.get<std::string>());
  }
  return out;
}

std::optional<JsonObject> JsonObject::object_or_none(const std::string& key) const {
  if (!find(key)) return std::nullopt;
  return object(key);
}

void JsonObject::require_default(const std::string& key, const char* value) const {
  if (text_or(key, value) != value) unsupported(key, fmt::format("\"{}\"", value));
}

void JsonObject::require_default(const std::string& key, bool value) const {
  if (boolean_or(key, value) != value) unsupported(key, value ? "true" : "false");
}

}  // namespace kdt
