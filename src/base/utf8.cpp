#include "base/utf8.h"

#include <algorithm>

namespace kdt {

Utf8Unit first_utf8_unit(std::string_view bytes) {
  using Kind = Utf8Unit::Kind;
  const auto at = [&](size_t i) { return static_cast<uint8_t>(bytes[i]); };
  const uint8_t lead = at(0);
  if (lead < 0x80) return {Kind::kValid, 1, lead};
  if (lead < 0xC2 || lead > 0xF4) return {Kind::kInvalid, 1, 0};

  const uint32_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
  uint32_t code_point = lead & (0x7Fu >> length);
  // Only the second byte's range depends on the lead: it excludes overlong forms, surrogates and
  // values above U+10FFFF.
  uint8_t low = 0x80, high = 0xBF;
  if (lead == 0xE0) low = 0xA0;
  if (lead == 0xED) high = 0x9F;
  if (lead == 0xF0) low = 0x90;
  if (lead == 0xF4) high = 0x8F;
  for (uint32_t i = 1; i < length; ++i) {
    if (i == bytes.size()) return {Kind::kTruncated, i, 0};
    if (at(i) < low || at(i) > high) return {Kind::kInvalid, i, 0};
    code_point = code_point << 6 | (at(i) & 0x3Fu);
    low = 0x80;
    high = 0xBF;
  }
  return {Kind::kValid, length, code_point};
}

std::string replace_invalid_utf8(std::string_view bytes) {
  std::string out;
  out.reserve(bytes.size());
  while (!bytes.empty()) {
    const Utf8Unit unit = first_utf8_unit(bytes);
    out += unit.kind == Utf8Unit::Kind::kValid ? bytes.substr(0, unit.bytes) : kReplacement;
    bytes.remove_prefix(unit.bytes);
  }
  return out;
}

void append_utf8(uint32_t c, std::string* out) {
  const auto put = [out](uint32_t byte) { out->push_back(static_cast<char>(byte)); };
  const auto continuation = [&](int shift) { put(0x80 | (c >> shift & 0x3F)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    continuation(0);
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    continuation(6);
    continuation(0);
  } else {
    put(0xF0 | c >> 18);
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

}  // namespace kdt
