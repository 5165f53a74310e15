// The CPU layout of a packed LinearWeight, shared by pack_linear, linear and moe_experts.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/rounding.h"
#include "cpu/linear_kernel.h"
#include "cpu/parallel.h"
#include "ops/linear.h"

namespace kdt::cpu {

// What LinearWeight::data points to; the groups' panels follow at kPanelsOffset.
struct PackedLinear {
  int64_t segment = 0;
  int64_t segment_bytes = 0;
  int64_t panel_bytes = 0;
};
inline constexpr size_t kPanelsOffset = 64;

inline int64_t panel_count(const LinearWeight& w) {
  return ceil_div(w.out_features, kPanelOutputs);
}

inline PanelMatrix panel_matrix(const LinearWeight& w, int64_t group) {
  const auto& packed = *static_cast<const PackedLinear*>(w.data);
  const uint8_t* panels = static_cast<const uint8_t*>(w.data) + kPanelsOffset;
  return {.format = static_cast<PanelFormat>(w.format),
          .data = panels + group * panel_count(w) * packed.panel_bytes,
          .out_features = w.out_features,
          .in_features = w.in_features,
          .segment = packed.segment,
          .segment_bytes = packed.segment_bytes,
          .panel_bytes = packed.panel_bytes};
}

// The kernel of this machine; see linear_kernel.h.
using Gemm = void (*)(const GemmBlock&);
Gemm gemm_kernel();

// Multiply-adds below which waking the other threads costs more than it saves.
inline constexpr int64_t kSerialWork = 100'000;

// body(unit, first panel, past the last panel) over all panels of `units` matrices, in parallel.
// Several blocks per thread even out their speed; a block keeps as many panels together as the
// kernel reads at once for so many rows.
template <typename Body>
void for_panel_blocks(int64_t units, int64_t panels, int64_t rows, bool worth_threads,
                      const Body& body) {
  const int64_t together = rows == 1 ? 8 : rows <= 4 ? 4 : 2;
  const int64_t wanted = std::max<int64_t>(1, 4 * max_threads() / units);
  const int64_t blocks = std::clamp<int64_t>(panels / together, 1, wanted);
  parallel_for(units * blocks, worth_threads, [&](int64_t i) {
    const int64_t unit = i / blocks, block = i % blocks, groups = ceil_div(panels, together);
    body(unit, block * groups / blocks * together,
         std::min(panels, (block + 1) * groups / blocks * together));
  });
}

}  // namespace kdt::cpu
