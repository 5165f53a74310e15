#include "ops/next_round.h"

#include <algorithm>

#include "cpu/ops.h"

namespace kdt::cpu {

void next_round(const NextRoundParams& p, Stream) {
  for (int32_t b = 0; b < p.batch; ++b) {
    const int32_t next = p.prefix_len[b] + p.n_accepted[b];
    if (p.bonus[b] >= 0 && next < p.max_len[b]) {
      p.prefix_len[b] = next;
      p.root_token[b] = p.bonus[b];
    }
    p.max_depth[b] = std::min(p.depth, p.max_len[b] - 1 - p.prefix_len[b]);
  }
}

}  // namespace kdt::cpu
