// CRC32C (Castagnoli), the checksum of KDTR; crc32c of "123456789" is 0xE3069283.
#pragma once

#include <cstdint>
#include <span>

namespace kdt::kdtr {

// `previous` is the CRC of the bytes before these: crc32c(b, crc32c(a)) is the CRC of a then b.
uint32_t crc32c(std::span<const uint8_t> bytes, uint32_t previous = 0);

}  // namespace kdt::kdtr
