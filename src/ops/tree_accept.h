// tree_accept: the target's tokens along the tree, and how far the draft agrees with them.
//
// Starting at the root: draw the node's target token from its logits; if a child carries it, accept
// that child and go on; else it is the bonus token. Greedy (temperature 0): the largest logit, ties
// to the lower id. Sampled: keep tokens by top-k, then top-p, then min-p on softmax(logits / T)
// sorted by probability descending, id ascending; the draw is the argmax over kept tokens of
// logit / T - log(-log u) in float64, ties to the lower id, with
// u = (x + 0.5) 2^-32, x = lane (id % 4) of Philox4x32-10 (Salmon et al. 2011) with key = seed and
// counter = (position of the drawn token, id / 4, 0, 0) as 32-bit words. So a request's tokens
// depend on its seed and positions only, not on the tree, the budget or the batch.
// top-p keeps the shortest prefix of that order whose probability sum reaches top_p (the token that
// crosses it included); min-p keeps p >= min_p * max p; both use probabilities of the kept set so
// far, renormalized. At least one token is always kept. Backends may differ where the draw's margin
// or a filter's is within 1e-6.
//
// Without logits the targets are the caller's: the walk alone, with -1 for a target that could not
// be drawn.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

// How one request draws its tokens.
struct SamplingParams {
  float temperature = 0.0f;  // 0 = greedy; otherwise > 0
  float top_p = 1.0f;        // (0, 1]
  float min_p = 0.0f;        // [0, 1)
  int32_t top_k = 0;         // 0 = off
  uint64_t seed = 0;
};

struct TreeAcceptParams {
  const float* logits = nullptr;          // [R, vocab], or null: `targets` holds the tokens
  const int32_t* tokens = nullptr;        // [R]
  const int32_t* positions = nullptr;     // [R] the drawn token's is positions[r] + 1; with logits
  const int32_t* first_child = nullptr;   // [R] node ids, from tree_build
  const int32_t* next_sibling = nullptr;  // [R]
  const int32_t* row_offset = nullptr;    // [B]
  const int32_t* n_nodes = nullptr;       // [B]; 0 = request idle: nothing is written
  const SamplingParams* sampling = nullptr;  // [B]; with logits
  int32_t batch = 0;                         // B
  int32_t n_rows = 0;                        // R
  int32_t vocab = 0;
  int32_t max_accepted = 0;  // A, longest path incl. root

  int32_t* accepted = nullptr;    // [B, A] node ids root .. deepest accepted
  int32_t* n_accepted = nullptr;  // [B] acceptance length, the root counted
  int32_t* bonus = nullptr;       // [B] target token of the last accepted node
  int32_t* targets = nullptr;     // [R] every node's target token: written with logits, unless
                                  // null, read without
  int32_t* status = nullptr;  // [B] 0 = ok, 1 = NaN or +inf among the logits of the path, or all
                              // -inf: accepted is then [0], n_accepted 1, bonus -1
  Workspace workspace;
};

void check(const TreeAcceptParams& p);
// Throws kInvalidArgument naming the value out of range.
void check(const SamplingParams& s);
size_t tree_accept_workspace(const Backend& backend, const TreeAcceptParams& largest);
void tree_accept(const Backend& backend, const TreeAcceptParams& p, Stream stream = {});

}  // namespace kdt
