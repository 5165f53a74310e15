// What a CPU op checks of a batch's arrays before it reads through them. (Backends whose arrays are
// not in host memory rely on the caller.)
#pragma once

#include "ops/row_batch.h"

namespace kdt::cpu {

// Request b's rows lie within [0, n_rows).
void require_rows_inside(const char* op, const RowBatch& rows, int32_t b);

// The pages of positions 0 .. prefix_len[b] - 1 are in the block table, each in [0, n_pages).
void require_prefix_pages(const char* op, const RowBatch& rows, int32_t b, int32_t n_pages);

}  // namespace kdt::cpu
