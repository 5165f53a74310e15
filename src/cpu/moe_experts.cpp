// moe_experts: rows are grouped by expert, so that an expert's weights are read once per call.
// Every (row, slot) pair has its own place in the workspace; a row's bits do not depend on the
// others.
#include <algorithm>

#include "base/error.h"
#include "base/rounding.h"
#include "cpu/ops.h"
#include "cpu/panels.h"
#include "cpu/parallel.h"
#include "cpu/silu.h"

namespace kdt::cpu {
namespace {

using namespace KDT_ISA;

// Scratch of one call. Pair p is slot p % n_selected of row p / n_selected.
struct Scratch {
  int32_t* begin;   // [E + 1] where each expert's pairs begin in `pairs`
  int32_t* pairs;   // [M * S] ascending within an expert
  int32_t* rows;    // [M * S] the row of pairs[i]
  int32_t* active;  // [E] experts that have pairs
  float* gate;      // [M * S, intermediate] by pair; then silu(gate) * up
  float* up;        // [M * S, intermediate]
  float* out;       // [M * S, hidden]
  size_t bytes;
};

Scratch lay_out(const MoeExpertsParams& p) {
  const int64_t n_pairs = int64_t{p.n_rows} * p.n_selected, experts = p.gate->n_groups;
  size_t offset = 0;
  const auto take = [&]<typename T>(T*& pointer, int64_t count) {
    pointer = reinterpret_cast<T*>(reinterpret_cast<uintptr_t>(p.workspace.data) + offset);
    offset += round_up(count * sizeof(T), size_t{64});
  };
  Scratch s;
  take(s.begin, experts + 1);
  take(s.pairs, n_pairs);
  take(s.rows, n_pairs);
  take(s.active, experts);
  take(s.gate, n_pairs * p.gate->out_features);
  take(s.up, n_pairs * p.gate->out_features);
  take(s.out, n_pairs * p.down->out_features);
  s.bytes = offset;
  return s;
}

// Counting sort of the pairs by expert; returns the number of active experts.
int group_by_expert(const MoeExpertsParams& p, const Scratch& s) {
  const int32_t n_pairs = p.n_rows * p.n_selected, experts = p.gate->n_groups;
  std::fill_n(s.begin, experts + 1, 0);
  for (int32_t i = 0; i < n_pairs; ++i) {
    const int32_t expert = p.ids[i];
    if (expert < 0 || expert >= experts) {
      throw_error(ErrorCode::kInvalidArgument, "moe_experts: ids[{}, {}] is {}, expected 0..{}",
                  i / p.n_selected, i % p.n_selected, expert, experts - 1);
    }
    ++s.begin[expert];
  }
  int n_active = 0;
  for (int32_t e = 0, end = 0; e <= experts; ++e) {
    if (e < experts && s.begin[e]) s.active[n_active++] = e;
    end += s.begin[e];
    s.begin[e] = end;  // one past the expert's pairs; filling backwards leaves the first
  }
  for (int32_t i = n_pairs - 1; i >= 0; --i) {
    const int32_t at = --s.begin[p.ids[i]];
    s.pairs[at] = i;
    s.rows[at] = i / p.n_selected;
  }
  return n_active;
}

// Rows [begin, end) of the block's lists, in pieces that the kernel takes.
void gemm_rows(Gemm gemm, GemmBlock block, int32_t begin, int32_t end) {
  for (int32_t row = begin; row < end; row += kMaxBlockRows) {
    block.row_begin = row;
    block.row_end = std::min(end, row + kMaxBlockRows);
    gemm(block);
  }
}

// silu(gate) * up of one expert's pairs, outputs of panels [first, last).
void expert_hidden(const MoeExpertsParams& p, const Scratch& s, Gemm gemm, int32_t expert,
                   int64_t first, int64_t last) {
  const int64_t width = p.gate->out_features;
  const int32_t begin = s.begin[expert], end = s.begin[expert + 1];
  GemmBlock block = {.weight = panel_matrix(*p.gate, expert),
                     .x = p.x,
                     .x_stride = p.gate->in_features,
                     .x_rows = s.rows,
                     .y = s.gate,
                     .y_stride = width,
                     .y_rows = s.pairs,
                     .panel_begin = first,
                     .panel_end = last};
  gemm_rows(gemm, block, begin, end);
  block.weight = panel_matrix(*p.up, expert);
  block.y = s.up;
  gemm_rows(gemm, block, begin, end);
  const int64_t column = first * kPanelOutputs;
  const int64_t n = std::min(width, last * kPanelOutputs) - column;
  for (int32_t i = begin; i < end; ++i) {
    const int64_t at = s.pairs[i] * width + column;
    silu_mul_span(s.gate + at, s.up + at, s.gate + at, n);
  }
}

// y += weighted sum of the row's slots, columns [begin, end).
void add_slots(const MoeExpertsParams& p, const Scratch& s, int64_t row, int64_t begin,
               int64_t end) {
  const int64_t width = p.down->out_features;
  for (int64_t column = begin; column < end; column += kLanes) {
    const int n = static_cast<int>(std::min<int64_t>(kLanes, end - column));
    f32x16 total = zero();
    for (int64_t j = 0; j < p.n_selected; ++j) {
      const int64_t pair = row * p.n_selected + j;
      total = fma(broadcast(p.weights[pair]), load_first(s.out + pair * width + column, n), total);
    }
    float* y = p.y + row * width + column;
    store_first(y, add(load_first(y, n), total), n);
  }
}

// Outputs of panels [first, last) of all rows.
void output_columns(const MoeExpertsParams& p, const Scratch& s, Gemm gemm, int n_active,
                    int64_t first, int64_t last) {
  const int64_t width = p.down->out_features;
  for (int i = 0; i < n_active; ++i) {
    const int32_t expert = s.active[i];
    gemm_rows(gemm,
              {.weight = panel_matrix(*p.down, expert),
               .x = s.gate,
               .x_stride = p.down->in_features,
               .x_rows = s.pairs,
               .y = s.out,
               .y_stride = width,
               .y_rows = s.pairs,
               .panel_begin = first,
               .panel_end = last},
              s.begin[expert], s.begin[expert + 1]);
  }
  for (int64_t m = 0; m < p.n_rows; ++m) {
    add_slots(p, s, m, first * kPanelOutputs, std::min(width, last * kPanelOutputs));
  }
}

}  // namespace

size_t moe_experts_workspace(const MoeExpertsParams& largest) {
  return lay_out(largest).bytes;
}

void moe_experts(const MoeExpertsParams& p, Stream) {
  if (p.n_rows == 0) return;
  const Scratch s = lay_out(p);
  const int n_active = group_by_expert(p, s);
  const int64_t work =
      int64_t{p.n_rows} * p.n_selected * p.gate->out_features * p.gate->in_features;
  const int64_t typical_rows = int64_t{p.n_rows} * p.n_selected / n_active;
  const Gemm gemm = gemm_kernel();
  for_panel_blocks(n_active, panel_count(*p.gate), typical_rows, 2 * work > kSerialWork,
                   [&](int64_t i, int64_t first, int64_t last) {
                     expert_hidden(p, s, gemm, s.active[i], first, last);
                   });
  for_panel_blocks(1, panel_count(*p.down), typical_rows, work > kSerialWork,
                   [&](int64_t, int64_t first, int64_t last) {
                     output_columns(p, s, gemm, n_active, first, last);
                   });
}

}  // namespace kdt::cpu
