#include "ops/rope.h"

#include "ops/arguments.h"
#include "ops/backend.h"

namespace kdt {
namespace {

constexpr const char* kOp = "rope";

// Heads must not overlap, nor rows of heads, whichever of the two is outermost.
void check_strides(const RopeParams& p, const char* row_field, int64_t row_stride,
                   const char* head_field, int64_t head_stride) {
  require(p.n_heads == 1 || head_stride >= p.dim, kOp, head_field, head_stride, "at least {} (dim)",
          p.dim);
  require(p.n_rows == 1 || row_stride >= p.dim, kOp, row_field, row_stride, "at least {} (dim)",
          p.dim);
  if (p.n_heads == 1 || p.n_rows == 1) return;
  const int64_t heads = (p.n_heads - 1) * head_stride + p.dim;
  const int64_t rows = (p.n_rows - 1) * row_stride + p.dim;
  require(row_stride >= heads || head_stride >= rows, kOp, row_field, row_stride,
          "strides under which rows do not overlap ({} {})", head_field, head_stride);
}

}  // namespace

void check(const RopeParams& p) {
  require(p.n_rows >= 0, kOp, "n_rows", p.n_rows, "0 or more");
  require(p.n_heads >= 1, kOp, "n_heads", p.n_heads, "1 or more");
  require(p.dim >= 2 && p.dim % 2 == 0, kOp, "dim", p.dim, "a positive even number");
  if (p.n_rows == 0) return;
  require_pointer(kOp, "x", p.x);
  require_pointer(kOp, "y", p.y);
  require_pointer(kOp, "positions", p.positions);
  require_pointer(kOp, "inv_freq", p.inv_freq);
  check_strides(p, "x_row_stride", p.x_row_stride, "x_head_stride", p.x_head_stride);
  check_strides(p, "y_row_stride", p.y_row_stride, "y_head_stride", p.y_head_stride);
  if (p.x != p.y) return;
  require(p.n_rows == 1 || p.x_row_stride == p.y_row_stride, kOp, "y_row_stride", p.y_row_stride,
          "{} (x_row_stride), y being x", p.x_row_stride);
  require(p.n_heads == 1 || p.x_head_stride == p.y_head_stride, kOp, "y_head_stride",
          p.y_head_stride, "{} (x_head_stride), y being x", p.x_head_stride);
}

void rope(const Backend& backend, const RopeParams& p, Stream stream) {
  check(p);
  implemented(backend, &Backend::rope, kOp)(p, stream);
}

}  // namespace kdt
