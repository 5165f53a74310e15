#include "ops/draft_attention.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "draft_attention";
}  // namespace

void check(const DraftAttentionParams& p) {
  require_rows(kOp, p.rows, RowFields::kOffsetsAndCounts);
  require(p.n_kv_heads >= 1, kOp, "n_kv_heads", p.n_kv_heads, "1 or more");
  require(p.n_heads >= 1 && p.n_heads % p.n_kv_heads == 0, kOp, "n_heads", p.n_heads,
          "a multiple of n_kv_heads {}", p.n_kv_heads);
  require(p.head_dim >= 1, kOp, "head_dim", p.head_dim, "1 or more");
  require(p.n_pages >= 0, kOp, "n_pages", p.n_pages, "0 or more");
  require(p.sliding_window >= 0, kOp, "sliding_window", p.sliding_window, "0 (off) or more");
  if (p.rows.n_requests == 0 || p.rows.n_rows == 0) return;
  require_pointer(kOp, "q", p.q);
  require_pointer(kOp, "k", p.k);
  require_pointer(kOp, "v", p.v);
  require_pointer(kOp, "out", p.out);
  if (p.n_pages > 0) {
    require_pointer(kOp, "k_pages", p.k_pages);
    require_pointer(kOp, "v_pages", p.v_pages);
  }
}

size_t draft_attention_workspace(const Backend& backend, const DraftAttentionParams& largest) {
  return implemented(backend, &Backend::draft_attention_workspace, kOp)(largest);
}

void draft_attention(const Backend& backend, const DraftAttentionParams& p, Stream stream) {
  check(p);
  require_workspace(kOp, p.workspace,
                    implemented(backend, &Backend::draft_attention_workspace, kOp)(p));
  implemented(backend, &Backend::draft_attention, kOp)(p, stream);
}

}  // namespace kdt
