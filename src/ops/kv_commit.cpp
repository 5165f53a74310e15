#include "ops/kv_commit.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "kv_commit";
}  // namespace

void check(const KvCommitParams& p) {
  require_rows(kOp, p.rows, RowFields::kOffsets);
  require(p.max_accepted >= 0, kOp, "max_accepted", p.max_accepted, "0 or more");
  require(p.n_layers >= 0, kOp, "n_layers", p.n_layers, "0 or more");
  require(p.n_pages >= 0, kOp, "n_pages", p.n_pages, "0 or more");
  require(p.width >= 1, kOp, "width", p.width, "1 or more");
  require(p.n_layers <= 1 || p.tail_layer_stride >= int64_t{p.rows.n_rows} * p.width, kOp,
          "tail_layer_stride", p.tail_layer_stride, "at least {} (n_rows x width)",
          int64_t{p.rows.n_rows} * p.width);
  const bool scaled = p.tail_scales || p.page_scales;
  require(!scaled || p.dtype == DType::kF8E4M3, kOp, "dtype", dtype_name(p.dtype),
          "f8e4m3 with scales");
  if (p.rows.n_requests == 0) return;
  require_pointer(kOp, "n_accepted", p.n_accepted);
  if (p.n_layers > 0) {
    require_pointer(kOp, "tail", p.tail);
    require_pointer(kOp, "pages", p.pages);
    if (scaled) require_pointer(kOp, "tail_scales", p.tail_scales);
    if (scaled) require_pointer(kOp, "page_scales", p.page_scales);
  }
  if (!p.features) return;
  require_pointer(kOp, "features_out", p.features_out);
  require_pointer(kOp, "feature_offset", p.feature_offset);
  require(p.n_features >= 1, kOp, "n_features", p.n_features, "1 or more");
  require(p.hidden >= 1, kOp, "hidden", p.hidden, "1 or more");
  require(p.n_features == 1 || p.feature_stride >= int64_t{p.rows.n_rows} * p.hidden, kOp,
          "feature_stride", p.feature_stride, "at least {} (n_rows x hidden)",
          int64_t{p.rows.n_rows} * p.hidden);
}

void kv_commit(const Backend& backend, const KvCommitParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::kv_commit, kOp)(p, stream);
}

}  // namespace kdt
