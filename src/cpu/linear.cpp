#include "ops/linear.h"

#include <algorithm>

#include "cpu/isa.h"
#include "cpu/ops.h"
#include "cpu/panels.h"
#include "cpu/parallel.h"

namespace kdt::cpu {
namespace {

int64_t ceil_div(int64_t a, int64_t b) {
  return (a + b - 1) / b;
}

}  // namespace

Gemm gemm_kernel() {
  return use_avx512() ? avx512::gemm : avx2::gemm;
}

void linear(const LinearParams& p, Stream) {
  const LinearWeight& w = *p.weight;
  const int64_t panels = panel_count(w);
  const int64_t row_blocks = ceil_div(p.n_rows, kMaxBlockRows);
  const int64_t work = w.n_groups * w.out_features * w.in_features * p.n_rows;
  // Several blocks per thread even out their speed; eight panels are what one row reads at once.
  const int64_t wanted = ceil_div(4 * max_threads(), w.n_groups * std::max<int64_t>(row_blocks, 1));
  const int64_t block_panels =
      ceil_div(ceil_div(panels, wanted), p.n_rows == 1 ? 8 : 2) * (p.n_rows == 1 ? 8 : 2);
  const int64_t panel_blocks = ceil_div(panels, block_panels);
  const Gemm gemm = gemm_kernel();
  parallel_for(w.n_groups * row_blocks * panel_blocks, work > kSerialWork, [&](int64_t i) {
    const int64_t panel_block = i % panel_blocks, rest = i / panel_blocks;
    const int64_t row_block = rest % row_blocks, group = rest / row_blocks;
    gemm({.weight = panel_matrix(w, group),
          .x = p.x + group * p.x_group_stride,
          .x_stride = p.x_row_stride,
          .y = p.y + group * p.y_group_stride,
          .y_stride = p.y_row_stride,
          .accumulate = p.accumulate,
          .row_begin = static_cast<int32_t>(row_block * p.n_rows / row_blocks),
          .row_end = static_cast<int32_t>((row_block + 1) * p.n_rows / row_blocks),
          .panel_begin = panel_block * block_panels,
          .panel_end = std::min(panels, (panel_block + 1) * block_panels)});
  });
}

}  // namespace kdt::cpu
