// Which keys a tree node sees, as bits.
#pragma once

#include <cstdint>

namespace kdt::cuda::device {

// Bit i = whether a node sees key first + i, i = 0..31. Keys 0 .. prefix - 1 are the prefix, key
// prefix + j is tail row j < n_nodes. `words`: the node's ancestor words; null = it sees tail rows
// 0 .. node.
__device__ __forceinline__ uint32_t visible_keys(const uint64_t* words, int node, int n_nodes,
                                                 int prefix, int first) {
  const int tail = first - prefix;  // tail row of bit 0, negative in the prefix
  const auto low_bits = [](int n) { return n >= 32 ? 0xffffffffu : n <= 0 ? 0u : (1u << n) - 1u; };
  const uint32_t prefix_bits = low_bits(-tail);
  if (!words) return low_bits(node + 1 - tail);
  if (tail <= -32) return prefix_bits;
  uint32_t bits;
  if (tail < 0) {
    bits = static_cast<uint32_t>(words[0]) << -tail;
  } else {
    const int word = tail / 64, shift = tail % 64;
    if (tail >= n_nodes) return 0;
    bits = static_cast<uint32_t>(words[word] >> shift);
    if (shift > 32 && (word + 1) * 64 < n_nodes)
      bits |= static_cast<uint32_t>(words[word + 1] << (64 - shift));
  }
  return (bits & low_bits(n_nodes - tail)) | prefix_bits;
}

}  // namespace kdt::cuda::device
