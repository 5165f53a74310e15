// tree_build: best-first draft tree (DDTree, arXiv 2604.12989, Algorithm 1), one per request.
//
// A heap pops the path with the largest log-probability; node id = pop order, node 0 = root, the
// budget excludes the root. Ties go to the lexicographically smallest rank tuple. Path scores are
// float64: first = logp[0][0], child = score + logp[depth][0],
// sibling = (score - logp[d-1][r]) + logp[d-1][r+1], in that order of operations. A sibling enters
// when its left sibling pops, a child when its parent pops. -inf never enters.
//
// Request b writes rows row_offset[b] .. row_offset[b] + budget[b]; rows past n_nodes[b] become
// padding: token and position of the root, parent -1, depth 0, score 0, ancestors = the root alone.
#pragma once

#include <cstdint>

#include "ops/row_batch.h"

namespace kdt {

struct Backend;

inline constexpr int kMaxBudget = 1024;
inline constexpr int kMaxDepth = 31;

struct TreeBuildParams {
  const float* logp = nullptr;          // [B, L, K], from draft_topk: descending, at most 0
  const int32_t* ids = nullptr;         // [B, L, K]
  const int32_t* budget = nullptr;      // [B] 0..1024
  const int32_t* max_depth = nullptr;   // [B] 0..L
  const int32_t* max_rank = nullptr;    // [B] 1..K candidates per depth; 1 gives a chain
  const int32_t* root_token = nullptr;  // [B]
  const int32_t* prefix_len = nullptr;  // [B] position of the root
  const int32_t* row_offset = nullptr;  // [B]
  int32_t batch = 0;                    // B
  int32_t depth = 0;                    // L, 0..31
  int32_t k = 0;                        // K
  int32_t n_words = 0;                  // W >= ceil((budget + 1) / 64)
  int32_t max_budget = 0;               // largest budget[b]; sizes the workspace

  int32_t* tokens = nullptr;        // [R]
  int32_t* parents = nullptr;       // [R] node id within the request; the root's is -1
  int32_t* depths = nullptr;        // [R] root 0
  int32_t* positions = nullptr;     // [R] prefix_len + depth
  double* scores = nullptr;         // [R] path log-probability; root 0
  uint64_t* ancestors = nullptr;    // [R, n_words] bit j = node j is an ancestor or the node itself
  int32_t* first_child = nullptr;   // [R] node id or -1
  int32_t* next_sibling = nullptr;  // [R] node id or -1; children in rank order
  int32_t* n_nodes = nullptr;       // [B] 1..budget + 1
  Workspace workspace;
};

void check(const TreeBuildParams& p);
size_t tree_build_workspace(const Backend& backend, const TreeBuildParams& largest);
void tree_build(const Backend& backend, const TreeBuildParams& p, Stream stream = {});

}  // namespace kdt
