// Logits of whole prompts, for tests: one forward pass from an empty cache.
#pragma once

#include <numeric>
#include <vector>

#include "model/target_model.h"

namespace kdt::test {

// All positions' logits [n, vocab] of a prompt of at most 1024 tokens.
inline std::vector<float> prompt_logits(model::TargetModel& target,
                                        const std::vector<int32_t>& tokens) {
  const int32_t n = static_cast<int32_t>(tokens.size()), zero = 0;
  target.plan({.max_rows = n, .max_logit_rows = n, .max_requests = 1});
  std::vector<int32_t> positions(n);
  std::iota(positions.begin(), positions.end(), 0);
  const int32_t pages[16] = {};
  target.forward({.rows = {.n_requests = 1,
                           .n_rows = n,
                           .row_offset = &zero,
                           .n_nodes = &n,
                           .prefix_len = &zero,
                           .block_table = pages,
                           .max_blocks = 16},
                  .tokens = tokens.data(),
                  .positions = positions.data()},
                 target.make_cache(1));
  target.compute_logits(0, n, 0);
  const size_t count = static_cast<size_t>(n) * target.config().vocab_size;
  return {target.logits(), target.logits() + count};
}

}  // namespace kdt::test
