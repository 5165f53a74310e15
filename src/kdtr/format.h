// The constants and shared rules of the KDTR format. FORMAT.md, in this directory, is the
// specification; the rule names that end every message are defined there.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>

#include "base/dtype.h"
#include "base/error.h"
#include "base/rounding.h"

namespace kdt::kdtr {

inline constexpr std::array<uint8_t, 8> kMagic = {'K', 'D', 'T', 'R', '\r', '\n', 0x1a, '\n'};
inline constexpr uint32_t kVersion = 1;
inline constexpr uint64_t kAlignment = 64;
inline constexpr uint32_t kMaxTensors = 1u << 16;
inline constexpr uint32_t kMaxMeta = 1u << 12;
inline constexpr uint64_t kMaxIndexBytes = uint64_t{1} << 26;
inline constexpr uint32_t kMaxNameBytes = 255;
inline constexpr uint32_t kMaxValueBytes = 1u << 20;
inline constexpr size_t kMaxRank = 8;
inline constexpr uint64_t kMaxTensorBytes = uint64_t{1} << 48;

// The first 64 bytes of a file, as they lie there.
struct Header {
  std::array<uint8_t, 8> magic;
  uint32_t version;
  uint32_t n_tensors;
  uint32_t n_meta;
  uint32_t structure_crc;
  uint64_t index_bytes;
  uint64_t file_bytes;
  std::array<uint8_t, 24> reserved;
};
static_assert(sizeof(Header) == 64 && std::endian::native == std::endian::little);

inline constexpr size_t kTensorEntryBytes = 16;  // of the index, without shape and name

// The file's dtype codes are the DType values plus one, so that zeroed bytes are no dtype.
static_assert(static_cast<int>(DType::kF64) == 0 && static_cast<int>(DType::kBF16) == 3 &&
              static_cast<int>(DType::kI64) == 5 && static_cast<int>(DType::kU64) == 9 &&
              static_cast<int>(DType::kBool) == 13);

using Metadata = std::map<std::string, std::string>;

constexpr uint64_t align_up(uint64_t n) {
  return round_up(n, kAlignment);
}

// CRC32C of the header, its own field taken as zero, and the index.
uint32_t structure_crc(Header header, std::span<const uint8_t> index);

// Throws kBadFile with `file` in front and the broken rule of FORMAT.md behind.
template <typename... Args>
[[noreturn]] void reject(std::string_view file, std::string_view rule,
                         fmt::format_string<Args...> format, Args&&... args) {
  throw_error(ErrorCode::kBadFile, "{}: {} [{}]", file,
              fmt::format(format, std::forward<Args>(args)...), rule);
}

// `text` with control characters and bytes that are not UTF-8 as \xNN, for messages and terminals.
std::string printable(std::string_view text);

// Checks shared by reader and writer; they reject() on behalf of `file`.
void check_name(std::string_view name, std::string_view file);    // a tensor name or metadata key
void check_value(std::string_view value, std::string_view file);  // a metadata value
// Payload bytes of a tensor. Safe for any `shape`.
uint64_t checked_bytes(std::span<const uint64_t> shape, DType dtype, std::string_view name,
                       std::string_view file);
// True when every byte of a bool payload is 0 or 1.
bool valid_bools(std::span<const uint8_t> bytes);

}  // namespace kdt::kdtr
