#include "ops/rms_norm.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {
constexpr const char* kOp = "rms_norm";
}  // namespace

void check(const RmsNormParams& p) {
  require(p.n_rows >= 0, kOp, "n_rows", p.n_rows, "0 or more");
  require(p.n_heads >= 1, kOp, "n_heads", p.n_heads, "1 or more");
  require(p.dim >= 1, kOp, "dim", p.dim, "1 or more");
  require(p.eps >= 0.0f, kOp, "eps", p.eps, "0 or more");
  if (p.n_rows == 0) return;
  require_pointer(kOp, "x", p.x);
  require_pointer(kOp, "weight", p.weight);
  require_pointer(kOp, "y", p.y);
  const int64_t width = int64_t{p.n_heads} * p.dim;
  require(p.n_rows == 1 || p.x_row_stride >= width, kOp, "x_row_stride", p.x_row_stride,
          "at least {} (n_heads x dim)", width);
  require(p.n_rows == 1 || p.y_row_stride >= width, kOp, "y_row_stride", p.y_row_stride,
          "at least {} (n_heads x dim)", width);
  require(p.x != p.y || p.n_rows == 1 || p.x_row_stride == p.y_row_stride, kOp, "y_row_stride",
          p.y_row_stride, "{} (x_row_stride), y being x", p.x_row_stride);
}

void rms_norm(const Backend& backend, const RmsNormParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::rms_norm, kOp)(p, stream);
}

}  // namespace kdt
