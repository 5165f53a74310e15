// The inner loop of both attention ops: queries against one block of 64 positions, with online
// softmax (Milakov and Gimelshein, arXiv 1805.02867).
//
// Everything a query's bits depend on is its own block: a dot product is a sum over lanes of a
// fixed tree, softmax lanes are positions modulo 64, values are added in position order. Which
// other queries share the call, and where the keys lie in memory, changes nothing.
#pragma once

namespace kdt::cpu {

inline constexpr int kAttentionBlock = 64;

// Keys at positions 64 b .. 64 b + 63; null = not visible.
struct AttentionKeys {
  const float* key[kAttentionBlock];    // [dim]
  const float* value[kAttentionBlock];  // [value_dim]; may be a part of the key
  int dim;                              // multiples of 16
  int value_dim;
  float scale;
};

// A query and what it has seen so far. Starts as max = -inf, sum = 0, acc = 0.
struct AttentionQuery {
  const float* q;  // [dim]
  float* acc;      // [value_dim] sum of exp(s - max) * value
  float max;       // largest score; NaN once a score was NaN or +inf
  float sum;       // sum of exp(s - max)
};

// Blocks must come in ascending order. Thread-safe for distinct queries.
void attend_block(const AttentionKeys& keys, AttentionQuery* queries, int n_queries);

}  // namespace kdt::cpu
