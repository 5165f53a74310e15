#include "ops/tree_accept.h"

#include <cmath>

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "tree_accept";
}  // namespace

void check(const TreeAcceptParams& p) {
  require(p.batch >= 0, kOp, "batch", p.batch, "0 or more");
  require(p.n_rows >= 0, kOp, "n_rows", p.n_rows, "0 or more");
  require(p.vocab >= 1 || !p.logits, kOp, "vocab", p.vocab, "1 or more");
  require(p.max_accepted >= 1, kOp, "max_accepted", p.max_accepted, "1 or more");
  if (p.batch == 0) return;
  require_pointer(kOp, "row_offset", p.row_offset);
  require_pointer(kOp, "n_nodes", p.n_nodes);
  if (p.n_rows == 0) return;
  if (p.logits) {
    require_pointer(kOp, "positions", p.positions);
    require_pointer(kOp, "sampling", p.sampling);
  } else {
    require_pointer(kOp, "logits (or targets)", p.targets);
  }
  require_pointer(kOp, "tokens", p.tokens);
  require_pointer(kOp, "first_child", p.first_child);
  require_pointer(kOp, "next_sibling", p.next_sibling);
  require_pointer(kOp, "accepted", p.accepted);
  require_pointer(kOp, "n_accepted", p.n_accepted);
  require_pointer(kOp, "bonus", p.bonus);
  require_pointer(kOp, "status", p.status);
}

void check(const SamplingParams& s) {
  constexpr const char* kWhat = "sampling";
  require(s.temperature >= 0.0f && std::isfinite(s.temperature), kWhat, "temperature",
          s.temperature, "0 (greedy) or a positive number");
  require(s.top_p > 0.0f && s.top_p <= 1.0f, kWhat, "top_p", s.top_p, "above 0, at most 1");
  require(s.min_p >= 0.0f && s.min_p < 1.0f, kWhat, "min_p", s.min_p, "0 or more, below 1");
  require(s.top_k >= 0, kWhat, "top_k", s.top_k, "0 (off) or more");
}

size_t tree_accept_workspace(const Backend& backend, const TreeAcceptParams& largest) {
  return implemented(backend, &Backend::tree_accept_workspace, kOp)(largest);
}

void tree_accept(const Backend& backend, const TreeAcceptParams& p, Stream stream) {
  check(p);
  require_workspace(kOp, p.workspace,
                    implemented(backend, &Backend::tree_accept_workspace, kOp)(p));
  implemented(backend, &Backend::tree_accept, kOp)(p, stream);
}

}  // namespace kdt
