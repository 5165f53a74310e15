#include "cpu/linear_kernel.h"

#include "cpu/linear_expand.h"
#include "cpu/simd.h"

namespace kdt::cpu::KDT_ISA {
namespace {

// Register tiles of rows x panels. The accumulators fit the register file (32 vectors, or 16 with
// two to a panel) and are enough to hide the FMA latency; few rows read many panels at once, which
// keeps memory busy.
#ifdef __AVX512F__
constexpr int kTileRows = 12;
constexpr int kTilePanels = 2;
constexpr int kDirectRows = 8;  // up to here weights are expanded in registers
constexpr int kMaxPanels = 8;
constexpr int direct_rows(int panels) {
  return panels == 8 ? 1 : panels == 4 ? 4 : kDirectRows;
}
#else
constexpr int kTileRows = 6;
constexpr int kTilePanels = 1;
constexpr int kDirectRows = 4;
constexpr int kMaxPanels = 4;
constexpr int direct_rows(int panels) {
  return panels == 4 ? 1 : panels == 2 ? 2 : kDirectRows;
}
#endif
constexpr int kBlockK = 128;     // k's of expanded weights kept in L1
constexpr int kAheadBytes = 32;  // fetched ahead per k and panel: a cache line every second k

int64_t smaller(int64_t a, int64_t b) {
  return a < b ? a : b;
}

// What a tile fetches into the cache while it computes: `bytes` of each panel from `data` on.
struct Ahead {
  const uint8_t* data = nullptr;
  int64_t panel_bytes = 0;
  int64_t bytes = 0;
};

// `n_k` weights of several panels, `panel_bytes` apart, from a segment's start.
struct TileWeights {
  const uint8_t* data;
  int64_t panel_bytes, segment, segment_bytes, n_k;
  Ahead ahead;
};

// sums [kRows][kPanels * 16], continued when `resume`, += W x.
template <PanelFormat kFormat, int kRows, int kPanels>
void tile(const TileWeights& w, const float* const* x_rows, float* sums, bool resume) {
  f32x16 acc[kRows][kPanels];
  const float* x[kRows];
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    x[r] = x_rows[r];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      acc[r][p] = resume ? load(sums + (r * kPanels + p) * kLanes) : zero();
    }
  }
  const auto step = [&](const uint8_t* codes, const f32x16* scale, int64_t k, int parity)
      __attribute__((always_inline)) {
    f32x16 weight[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      weight[p] = expand<kFormat>(codes + p * w.panel_bytes, parity, scale[p]);
    }
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const f32x16 value = broadcast(x[r][k + parity]);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) acc[r][p] = fma(value, weight[p], acc[r][p]);
    }
  };
  const uint8_t* segment = w.data;
  for (int64_t k = 0; k < w.n_k; segment += w.segment_bytes) {
    const int64_t end = smaller(k + w.segment, w.n_k);
    const uint8_t* codes = segment;
    f32x16 scale[kPanels] = {};
    if constexpr (has_scales(kFormat)) {
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        scale[p] = load(reinterpret_cast<const float*>(segment + p * w.panel_bytes));
      }
      codes += kScaleBytes;
    }
    for (; k + 2 <= end; k += 2, codes += pair_bytes(kFormat)) {
      if (k * kAheadBytes < w.ahead.bytes) {
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) {
          prefetch(w.ahead.data + p * w.ahead.panel_bytes + k * kAheadBytes);
        }
      }
      step(codes, scale, k, 0);
      step(codes, scale, k, 1);
    }
    if (k < end) step(codes, scale, k++, 0);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) store(sums + (r * kPanels + p) * kLanes, acc[r][p]);
  }
}

using Tile = void (*)(const TileWeights&, const float* const*, float*, bool);

// The tile of `rows` rows, 1 <= rows <= kMaxRows.
template <PanelFormat kFormat, int kPanels, int kMaxRows>
Tile tile_of(int rows) {
  if constexpr (kMaxRows == 1) {
    return tile<kFormat, 1, kPanels>;
  } else {
    return rows == kMaxRows ? tile<kFormat, kMaxRows, kPanels>
                            : tile_of<kFormat, kPanels, kMaxRows - 1>(rows);
  }
}

// Finished sums [rows][panels * 16] -> y, leaving out the padding outputs of the last panel.
void write_rows(const GemmBlock& b, const float* sums, int first_row, int rows, int64_t panel,
                int panels) {
  for (int r = 0; r < rows; ++r) {
    const int64_t row = b.y_rows ? b.y_rows[first_row + r] : first_row + r;
    for (int p = 0; p < panels; ++p, sums += kLanes) {
      const int64_t output = (panel + p) * kPanelOutputs;
      const int n = static_cast<int>(smaller(kPanelOutputs, b.weight.out_features - output));
      float* y = b.y + row * b.y_stride + output;
      f32x16 sum = load(sums);
      if (b.accumulate) sum = add(load_first(y, n), sum);
      store_first(y, sum, n);
    }
  }
}

void find_rows(const GemmBlock& b, int first_row, int rows, int64_t k, const float** x) {
  for (int r = 0; r < rows; ++r) {
    const int64_t row = b.x_rows ? b.x_rows[first_row + r] : first_row + r;
    x[r] = b.x + row * b.x_stride + k;
  }
}

// At most kDirectRows rows: as many panels at once as fit, weights expanded in registers.
template <PanelFormat kFormat, int kPanels>
void few_rows(const GemmBlock& b, int64_t panel) {
  const int rows = b.row_end - b.row_begin;
  if (rows <= direct_rows(kPanels)) {
    const PanelMatrix& w = b.weight;
    const Tile run = tile_of<kFormat, kPanels, direct_rows(kPanels)>(rows);
    const float* x[kDirectRows] = {};
    find_rows(b, b.row_begin, rows, 0, x);
    alignas(64) float sums[direct_rows(kPanels) * kPanels * kLanes];
    for (; panel + kPanels <= b.panel_end; panel += kPanels) {
      const uint8_t* data = w.data + panel * w.panel_bytes;
      run({data, w.panel_bytes, w.segment, w.segment_bytes, w.in_features}, x, sums, false);
      write_rows(b, sums, b.row_begin, rows, panel, kPanels);
    }
  }
  if constexpr (kPanels > 1) few_rows<kFormat, kPanels / 2>(b, panel);
}

// Weights of k in [k_begin, k_begin + n_k) of one panel as fp32 [n_k][16].
template <PanelFormat kFormat>
void expand_block(const PanelMatrix& w, int64_t panel, int64_t k_begin, int64_t n_k, float* out) {
  const uint8_t* data = w.data + panel * w.panel_bytes;
  for (int64_t k = k_begin; k < k_begin + n_k;) {
    const int64_t index = k / w.segment, begin = index * w.segment;
    const int64_t end = smaller(begin + w.segment, k_begin + n_k);
    const uint8_t* codes = data + index * w.segment_bytes;
    f32x16 scale = {};
    if constexpr (has_scales(kFormat)) {
      scale = load(reinterpret_cast<const float*>(codes));
      codes += kScaleBytes;
    }
    codes += (k - begin) / 2 * pair_bytes(kFormat);
    if ((k - begin) % 2 == 1) {
      store(out, expand<kFormat>(codes, 1, scale));
      codes += pair_bytes(kFormat), out += kLanes, ++k;
    }
    for (; k + 2 <= end; k += 2, codes += pair_bytes(kFormat), out += 2 * kLanes) {
      store(out, expand<kFormat>(codes, 0, scale));
      store(out + kLanes, expand<kFormat>(codes, 1, scale));
    }
    if (k < end) {
      store(out, expand<kFormat>(codes, 0, scale));
      out += kLanes, ++k;
    }
  }
}

// Many rows, kPanels panels: blocks of k, each expanded once and used by all row tiles; the sums
// wait in memory between blocks.
template <PanelFormat kFormat, int kPanels>
void many_rows(const GemmBlock& b, int64_t panel) {
  const PanelMatrix& w = b.weight;
  const int rows = b.row_end - b.row_begin;
  const int n_tiles = (rows + kTileRows - 1) / kTileRows;
  const int64_t code_bytes = w.panel_bytes / w.in_features;  // scales included, rounded down
  alignas(64) float sums[kMaxBlockRows * kPanels * kLanes];
  alignas(64) float expanded[kFormat == PanelFormat::kF32 ? 1 : kPanels * kBlockK * kLanes];
  for (int64_t k = 0; k < w.in_features; k += kBlockK) {
    const int64_t n_k = smaller(kBlockK, w.in_features - k);
    TileWeights block = {w.data + panel * w.panel_bytes + k * kLanes * 4, w.panel_bytes, n_k, 0,
                         n_k};
    if constexpr (kFormat != PanelFormat::kF32) {
      for (int p = 0; p < kPanels; ++p) {
        expand_block<kFormat>(w, panel + p, k, n_k, expanded + p * kBlockK * kLanes);
      }
      block.data = reinterpret_cast<const uint8_t*>(expanded);
      block.panel_bytes = kBlockK * kLanes * 4;
    }
    // The first tile hides the latency of the next block, here or in the panels that come next.
    const bool last_block = k + kBlockK >= w.in_features;
    block.ahead = {w.data + (last_block ? (panel + kPanels) * w.panel_bytes
                                        : panel * w.panel_bytes + (k + kBlockK) * code_bytes),
                   w.panel_bytes, kBlockK * code_bytes};
    for (int t = 0; t < n_tiles; ++t, block.ahead.bytes = 0) {
      const int first = t * rows / n_tiles, n = (t + 1) * rows / n_tiles - first;
      const float* x[kTileRows] = {};
      find_rows(b, b.row_begin + first, n, k, x);
      tile_of<PanelFormat::kF32, kPanels, kTileRows>(n)(block, x, sums + first * kPanels * kLanes,
                                                        k > 0);
    }
  }
  write_rows(b, sums, b.row_begin, rows, panel, kPanels);
}

template <PanelFormat kFormat>
void run(const GemmBlock& b) {
  int64_t panel = b.panel_begin;
  if (b.row_end - b.row_begin <= kDirectRows) return few_rows<kFormat, kMaxPanels>(b, panel);
  for (; panel + kTilePanels <= b.panel_end; panel += kTilePanels) {
    many_rows<kFormat, kTilePanels>(b, panel);
  }
  for (; panel < b.panel_end; ++panel) many_rows<kFormat, 1>(b, panel);
}

}  // namespace

void gemm(const GemmBlock& b) {
  if (b.row_begin >= b.row_end) return;
  switch (b.weight.format) {
    case PanelFormat::kF32:
      return run<PanelFormat::kF32>(b);
    case PanelFormat::kF16:
      return run<PanelFormat::kF16>(b);
    case PanelFormat::kBF16:
      return run<PanelFormat::kBF16>(b);
    case PanelFormat::kInt4:
      return run<PanelFormat::kInt4>(b);
    case PanelFormat::kFp8:
      return run<PanelFormat::kFp8>(b);
  }
}

}  // namespace kdt::cpu::KDT_ISA
