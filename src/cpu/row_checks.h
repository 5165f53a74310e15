// How a CPU op reads through a batch's arrays, and what it checks of them before. (Backends whose
// arrays are not in host memory rely on the caller.)
#pragma once

#include "ops/row_batch.h"

namespace kdt::cpu {

// Request b's rows lie within [0, n_rows).
void require_rows_inside(const char* op, const RowBatch& rows, int32_t b);

// The pages of positions 0 .. prefix_len[b] - 1 are in the block table, each in [0, n_pages).
void require_prefix_pages(const char* op, const RowBatch& rows, int32_t b, int32_t n_pages);

// The row of a [n_pages * 64, ...] cache that holds `position` of request b.
inline size_t cache_row(const RowBatch& rows, int32_t b, int32_t position) {
  const int32_t* table = rows.block_table + static_cast<size_t>(b) * rows.max_blocks;
  const size_t page = table[position / kPageTokens];
  return page * kPageTokens + position % kPageTokens;
}

}  // namespace kdt::cpu
