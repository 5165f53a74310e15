#include "kdtr/format.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "kdtr/crc32c.h"

namespace kdt::kdtr {
namespace {

// Bytes of the valid UTF-8 sequence that `text` starts with (Unicode 15, table 3-7), 0 if none.
size_t sequence_bytes(std::string_view text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0; };
  const int lead = byte(0);
  if (lead < 0x80) return 1;
  const size_t n = lead < 0xc2 ? 0 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : lead < 0xf5 ? 4 : 0;
  for (size_t i = 1; i < n; ++i)
    if ((byte(i) & 0xc0) != 0x80) return 0;
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool surrogate = lead == 0xed && byte(1) >= 0xa0;
  const bool too_large = lead == 0xf4 && byte(1) >= 0x90;
  return overlong || surrogate || too_large ? 0 : n;
}

bool is_control(std::string_view sequence) {
  const auto lead = static_cast<uint8_t>(sequence[0]);
  return lead < 0x20 || lead == 0x7f || (lead == 0xc2 && static_cast<uint8_t>(sequence[1]) < 0xa0);
}

// Walks `text`; false at the first sequence that is not UTF-8 or, unless allowed, a control.
bool valid_text(std::string_view text, bool controls_allowed) {
  while (!text.empty()) {
    const size_t n = sequence_bytes(text);
    if (n == 0 || (!controls_allowed && is_control(text.substr(0, n)))) return false;
    text.remove_prefix(n);
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
    const size_t n = sequence_bytes(text);
    const size_t taken = std::max<size_t>(n, 1);
    if (n == 0 || is_control(text.substr(0, n))) {
      for (const char c : text.substr(0, taken))
        out += fmt::format("\\x{:02x}", static_cast<uint8_t>(c));
    } else {
      out += text.substr(0, n);
    }
    text.remove_prefix(taken);
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
