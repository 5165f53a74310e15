#include "ops/tree_build.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "tree_build";
}  // namespace

void check(const TreeBuildParams& p) {
  require(p.batch >= 0, kOp, "batch", p.batch, "0 or more");
  require(p.depth >= 0 && p.depth <= kMaxDepth, kOp, "depth", p.depth, "0..31");
  require(p.max_budget >= 0 && p.max_budget <= kMaxBudget, kOp, "max_budget", p.max_budget,
          "0..1024");
  require(p.k >= (p.depth > 0) && p.k <= kMaxBudget, kOp, "k", p.k, "1..1024");
  require(p.n_words >= p.max_budget / 64 + 1, kOp, "n_words", p.n_words,
          "at least {} for max_budget {}", p.max_budget / 64 + 1, p.max_budget);
  if (p.batch == 0) return;
  if (p.depth > 0) {
    require_pointer(kOp, "logp", p.logp);
    require_pointer(kOp, "ids", p.ids);
  }
  require_pointer(kOp, "budget", p.budget);
  require_pointer(kOp, "max_depth", p.max_depth);
  require_pointer(kOp, "max_rank", p.max_rank);
  require_pointer(kOp, "root_token", p.root_token);
  require_pointer(kOp, "prefix_len", p.prefix_len);
  require_pointer(kOp, "row_offset", p.row_offset);
  require_pointer(kOp, "tokens", p.tokens);
  require_pointer(kOp, "parents", p.parents);
  require_pointer(kOp, "depths", p.depths);
  require_pointer(kOp, "positions", p.positions);
  require_pointer(kOp, "scores", p.scores);
  require_pointer(kOp, "ancestors", p.ancestors);
  require_pointer(kOp, "first_child", p.first_child);
  require_pointer(kOp, "next_sibling", p.next_sibling);
  require_pointer(kOp, "n_nodes", p.n_nodes);
}

size_t tree_build_workspace(const Backend& backend, const TreeBuildParams& largest) {
  return implemented(backend, &Backend::tree_build_workspace, kOp)(largest);
}

void tree_build(const Backend& backend, const TreeBuildParams& p, Stream stream) {
  check(p);
  require_workspace(kOp, p.workspace, implemented(backend, &Backend::tree_build_workspace, kOp)(p));
  implemented(backend, &Backend::tree_build, kOp)(p, stream);
}

}  // namespace kdt
