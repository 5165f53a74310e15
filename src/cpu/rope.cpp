#include "ops/rope.h"

#include <algorithm>
#include <cmath>

#include "cpu/ops.h"
#include "cpu/parallel.h"

namespace kdt::cpu {
namespace {

constexpr int kTablePairs = 64;

// cos and sin of pairs [first, first + n) of one row, shared by its heads. Scalar calls: a vector
// math library would give other bits.
struct Table {
  int first, n;
  float cos[kTablePairs], sin[kTablePairs];
};

void fill_table(const RopeParams& p, float position, Table* table) {
  for (int i = 0; i < table->n; ++i) {
    const float angle = position * p.inv_freq[table->first + i];
    table->cos[i] = std::cos(angle) * p.amplitude;
    table->sin[i] = std::sin(angle) * p.amplitude;
  }
}

// Elements first and second of pair i are `step` * i and `step` * i + `gap` from the head's start.
void rotate(const Table& table, const float* x, float* y, int64_t step, int64_t gap) {
  for (int i = 0; i < table.n; ++i) {
    const int64_t at = (table.first + i) * step;
    const float a = x[at], b = x[at + gap];
    y[at] = a * table.cos[i] - b * table.sin[i];
    y[at + gap] = b * table.cos[i] + a * table.sin[i];
  }
}

}  // namespace

void rope(const RopeParams& p, Stream) {
  const int pairs = p.dim / 2;
  const int64_t step = p.interleaved ? 2 : 1, gap = p.interleaved ? 1 : pairs;
  const int64_t work = int64_t{p.n_rows} * pairs * (8 + p.n_heads);  // a sine costs about 8 pairs
  parallel_for(p.n_rows, work > 20'000, [&](int64_t m) {
    for (int first = 0; first < pairs; first += kTablePairs) {
      Table table;
      table.first = first;
      table.n = std::min(kTablePairs, pairs - first);
      fill_table(p, static_cast<float>(p.positions[m]), &table);
      for (int64_t h = 0; h < p.n_heads; ++h) {
        rotate(table, p.x + m * p.x_row_stride + h * p.x_head_stride,
               p.y + m * p.y_row_stride + h * p.y_head_stride, step, gap);
      }
    }
  });
}

}  // namespace kdt::cpu
