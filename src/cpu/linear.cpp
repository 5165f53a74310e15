#include "ops/linear.h"

#include "base/rounding.h"
#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/panels.h"

namespace kdt::cpu {

Gemm gemm_kernel() {
  return use_avx512() ? avx512::gemm : avx2::gemm;
}

void linear(const LinearParams& p, Stream) {
  if (p.n_rows == 0) return;
  const LinearWeight& w = *p.weight;
  const int64_t row_blocks = ceil_div(p.n_rows, kMaxBlockRows);
  const int64_t work = w.n_groups * w.out_features * w.in_features * p.n_rows;
  const Gemm gemm = gemm_kernel();
  for_panel_blocks(w.n_groups * row_blocks, panel_count(w), p.n_rows, work > kSerialWork,
                   [&](int64_t i, int64_t first, int64_t last) {
                     const int64_t group = i / row_blocks, row_block = i % row_blocks;
                     gemm({.weight = panel_matrix(w, group),
                           .x = p.x + group * p.x_group_stride,
                           .x_stride = p.x_row_stride,
                           .y = p.y + group * p.y_group_stride,
                           .y_stride = p.y_row_stride,
                           .accumulate = p.accumulate,
                           .row_begin = static_cast<int32_t>(row_block * p.n_rows / row_blocks),
                           .row_end = static_cast<int32_t>((row_block + 1) * p.n_rows / row_blocks),
                           .panel_begin = first,
                           .panel_end = last});
                   });
}

}  // namespace kdt::cpu
