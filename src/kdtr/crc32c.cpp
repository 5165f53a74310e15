#include "kdtr/crc32c.h"

#include <nmmintrin.h>

#include <cstring>

namespace kdt::kdtr {

// SSE4.2 has this very polynomial as an instruction, and is part of the baseline (x86-64-v3).
uint32_t crc32c(std::span<const uint8_t> bytes, uint32_t previous) {
  uint64_t state = previous ^ 0xffffffffu;
  while (bytes.size() >= 8) {
    uint64_t word;
    std::memcpy(&word, bytes.data(), 8);
    state = _mm_crc32_u64(state, word);
    bytes = bytes.subspan(8);
  }
  for (const uint8_t byte : bytes) state = _mm_crc32_u8(static_cast<uint32_t>(state), byte);
  return static_cast<uint32_t>(state) ^ 0xffffffffu;
}

}  // namespace kdt::kdtr
