// next_round: what a decode round leaves to the next, so that no length passes through the host:
// the accepted rows are part of the prefix, the bonus token is the next root.
//
//   prefix_len += n_accepted,  root_token = bonus,  max_depth = min(depth, max_len - 1 -
//   prefix_len)
//
// max_depth keeps the next tree within the request's max_len tokens. A request whose targets could
// not be drawn (bonus -1), or whose next root would be beyond max_len - 1, stays as it was: its
// round repeats until somebody ends the request, and nothing is written past its pages.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

struct NextRoundParams {
  const int32_t* n_accepted = nullptr;  // [B] from tree_accept
  const int32_t* bonus = nullptr;       // [B] likewise
  const int32_t* max_len = nullptr;     // [B] tokens that the request's pages or context hold
  int32_t* prefix_len = nullptr;        // [B] in and out, below max_len
  int32_t* root_token = nullptr;        // [B] in and out
  int32_t* max_depth = nullptr;         // [B] for tree_build
  int32_t batch = 0;                    // B
  int32_t depth = 0;                    // L of the drafter
};

void check(const NextRoundParams& p);
void next_round(const Backend& backend, const NextRoundParams& p, Stream stream = {});

}  // namespace kdt
