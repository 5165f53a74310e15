// Draws target tokens and walks the tree; requests (or, when every target is wanted, rows) run in
// parallel.
#include "base/rounding.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/sampler.h"
#include "ops/arguments.h"

namespace kdt::cpu {
namespace {

constexpr const char* kOp = "tree_accept";
constexpr int64_t kThreadLogits = 16384;  // below this one thread is faster

size_t scratch_bytes(const TreeAcceptParams& p) {
  return round_up(static_cast<size_t>(p.vocab) * sizeof(uint64_t), size_t{64});
}

int32_t draw(const TreeAcceptParams& p, int32_t request, int32_t row) {
  char* scratch = static_cast<char*>(p.workspace.data) + thread_index() * scratch_bytes(p);
  return draw_token(p.logits + static_cast<size_t>(row) * p.vocab, p.vocab, p.sampling[request],
                    p.positions[row] + 1, reinterpret_cast<uint64_t*>(scratch));
}

void walk(const TreeAcceptParams& p, int32_t request) {
  if (p.n_nodes[request] == 0) return;
  const int32_t row = p.row_offset[request];
  int32_t* accepted = p.accepted + static_cast<size_t>(request) * p.max_accepted;
  int32_t n_accepted = 0, node = 0, target = -1;
  while (node >= 0 && n_accepted < p.max_accepted) {
    accepted[n_accepted++] = node;
    target = p.targets ? p.targets[row + node] : draw(p, request, row + node);
    if (target < 0) break;
    node = p.first_child[row + node];
    while (node >= 0 && p.tokens[row + node] != target) node = p.next_sibling[row + node];
  }
  if (target < 0) {
    accepted[0] = 0;
    n_accepted = 1;
  }
  p.n_accepted[request] = n_accepted;
  p.bonus[request] = target;
  p.status[request] = target < 0;
}

void check_requests(const TreeAcceptParams& p) {
  for (int32_t b = 0; b < p.batch; ++b) {
    const int32_t row = p.row_offset[b], n = p.n_nodes[b];
    require(n >= 0 && n <= p.n_rows, kOp, "n_nodes", n, "0..{} (n_rows)", p.n_rows);
    if (n == 0) continue;
    require(row >= 0 && row <= p.n_rows - n, kOp, "row_offset", row, "0..{} for {} nodes",
            p.n_rows - n, n);
    if (p.logits) check(p.sampling[b]);
    for (int32_t i = 0; i < n; ++i) {  // links ascend, so every walk ends
      const int32_t child = p.first_child[row + i], sibling = p.next_sibling[row + i];
      require(child == -1 || (child > i && child < n), kOp, "first_child", child,
              "-1 or {}..{} at node {}", i + 1, n - 1, i);
      require(sibling == -1 || (sibling > i && sibling < n), kOp, "next_sibling", sibling,
              "-1 or {}..{} at node {}", i + 1, n - 1, i);
    }
  }
}

}  // namespace

size_t tree_accept_workspace(const TreeAcceptParams& largest) {
  return max_threads() * scratch_bytes(largest);
}

void tree_accept(const TreeAcceptParams& p, Stream) {
  check_requests(p);
  for (int32_t b = 0; p.logits && p.targets && b < p.batch; ++b) {
    const int32_t row = p.row_offset[b];
    parallel_for(p.n_nodes[b], int64_t{p.n_nodes[b]} * p.vocab > kThreadLogits, [&](int64_t i) {
      p.targets[row + i] = draw(p, b, row + static_cast<int32_t>(i));
    });
  }
  const bool worth_threads = !p.targets && int64_t{p.batch} * p.vocab > kThreadLogits;
  parallel_for(p.batch, worth_threads, [&](int64_t b) { walk(p, static_cast<int32_t>(b)); });
}

}  // namespace kdt::cpu
