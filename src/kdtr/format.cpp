#include "kdtr/format.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "base/utf8.h"
#include "kdtr/crc32c.h"

namespace kdt::kdtr {
namespace {

bool is_control(uint32_t code_point) {
  return code_point < 0x20 || (code_point >= 0x7f && code_point < 0xa0);
}

// Whether `text` is UTF-8 and, unless allowed, without controls.
bool valid_text(std::string_view text, bool controls_allowed) {
  while (!text.empty()) {
    const Utf8Unit unit = first_utf8_unit(text);
    if (unit.kind != Utf8Unit::Kind::kValid) return false;
    if (!controls_allowed && is_control(unit.code_point)) return false;
    text.remove_prefix(unit.bytes);
  }
  return true;
}

}  // namespace

uint32_t structure_crc(Header header, std::span<const uint8_t> index) {
  header.structure_crc = 0;
  const auto bytes = std::bit_cast<std::array<uint8_t, sizeof(Header)>>(header);
  return crc32c(index, crc32c(bytes));
}

std::string printable(std::string_view text) {
  std::string out;
  while (!text.empty()) {
    const Utf8Unit unit = first_utf8_unit(text);
    const std::string_view taken = text.substr(0, unit.bytes);
    if (unit.kind == Utf8Unit::Kind::kValid && !is_control(unit.code_point)) {
      out += taken;
    } else {
      for (const char c : taken) out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    }
    text.remove_prefix(unit.bytes);
  }
  return out;
}

void check_name(std::string_view name, std::string_view file) {
  if (name.empty() || name.size() > kMaxNameBytes)
    reject(file, "limits", "a name of {} bytes, 1 to {} allowed", name.size(), kMaxNameBytes);
  if (!valid_text(name, /*controls_allowed=*/false))
    reject(file, "text", "name '{}' is not UTF-8 or has control characters", printable(name));
}

void check_value(std::string_view value, std::string_view file) {
  if (value.size() > kMaxValueBytes)
    reject(file, "limits", "a metadata value of {} bytes, at most {} allowed", value.size(),
           kMaxValueBytes);
  if (!valid_text(value, /*controls_allowed=*/true))
    reject(file, "text", "metadata value '{}' is not UTF-8", printable(value.substr(0, 64)));
}

uint64_t checked_bytes(std::span<const uint64_t> shape, DType dtype, std::string_view name,
                       std::string_view file) {
  // A zero dimension counts as one here: it does not excuse the others.
  uint64_t bound = dtype_bytes(dtype);
  bool empty = false;
  for (const uint64_t n : shape) {
    empty |= n == 0;
    if (n > kMaxTensorBytes / bound)
      reject(file, "shape", "tensor '{}': shape [{}] of {} is over {} bytes", name,
             fmt::join(shape, ", "), dtype_name(dtype), kMaxTensorBytes);
    bound *= std::max<uint64_t>(n, 1);
  }
  return empty ? 0 : bound;
}

bool valid_bools(std::span<const uint8_t> bytes) {
  return std::all_of(bytes.begin(), bytes.end(), [](uint8_t b) { return b <= 1; });
}

}  // namespace kdt::kdtr
