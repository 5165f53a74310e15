// Draws one token from a row of logits, as ops/tree_accept.h defines it.
#pragma once

#include <cstdint>

#include "ops/tree_accept.h"

namespace kdt::cpu {

// The token at absolute `position` (of the token being drawn); -1 if a logit is NaN or +inf, or all
// are -inf. scratch[vocab]. Thread-safe for distinct scratch.
int32_t draw_token(const float* logits, int32_t vocab, const SamplingParams& sampling,
                   int32_t position, uint64_t* scratch);

}  // namespace kdt::cpu
