// Decoding UTF-8 from untrusted bytes: finding ill-formed ones the way Python's errors='replace'
// does (one U+FFFD for each maximal subpart of an ill-formed sequence, Unicode 15.0 section 3.9).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace kdt {

inline constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD

// What the bytes of a non-empty string begin with.
struct Utf8Unit {
  enum class Kind {
    kValid,      // one code point of `bytes` bytes
    kInvalid,    // a maximal ill-formed subpart of `bytes` bytes
    kTruncated,  // all remaining `bytes` bytes begin a code point that is not finished
  };
  Kind kind;
  uint32_t bytes;
  uint32_t code_point;  // of a valid unit, else 0
};
Utf8Unit first_utf8_unit(std::string_view bytes);

// `bytes` with every ill-formed part replaced by U+FFFD, as bytes.decode('utf-8', 'replace').
std::string replace_invalid_utf8(std::string_view bytes);

// Requires a code point up to U+10FFFF.
void append_utf8(uint32_t code_point, std::string* out);

}  // namespace kdt
