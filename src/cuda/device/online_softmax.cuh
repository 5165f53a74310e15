// Online softmax (Milakov and Gimelshein, arXiv 1805.02867): what its implementations agree on. A
// row's exponents are taken relative to a reference, -inf while the row has seen no key.
#pragma once

#include <cmath>

namespace kdt::cuda::device {

// A reference, in log2, moves only to a score that is more than this above it: accumulators are
// seldom rescaled and every result is the same up to rounding.
constexpr float kReferenceSlack = 8.0f;

// What is subtracted from scores and other references: the reference, 0 while there is none.
__device__ __forceinline__ float shift(float reference) {
  return reference == -INFINITY ? 0.0f : reference;
}

}  // namespace kdt::cuda::device
