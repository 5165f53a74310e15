#include "cpu/row_checks.h"

#include "ops/arguments.h"

namespace kdt::cpu {

void require_rows_inside(const char* op, const RowBatch& rows, int32_t b) {
  const int32_t row = rows.row_offset[b], n = rows.n_nodes[b];
  require(n >= 0 && n <= rows.n_rows, op, "n_nodes", n, "0..{} (n_rows) in request {}", rows.n_rows,
          b);
  require(n == 0 || (row >= 0 && row <= rows.n_rows - n), op, "row_offset", row,
          "0..{} for the {} nodes of request {}", rows.n_rows - n, n, b);
}

void require_prefix_pages(const char* op, const RowBatch& rows, int32_t b, int32_t n_pages) {
  const int64_t prefix = rows.prefix_len[b], capacity = int64_t{rows.max_blocks} * kPageTokens;
  require(prefix >= 0 && prefix <= capacity, op, "prefix_len", prefix,
          "0..{} (max_blocks pages) in request {}", capacity, b);
  const int32_t* table = rows.block_table + static_cast<size_t>(b) * rows.max_blocks;
  for (int64_t block = 0; block * kPageTokens < prefix; ++block)
    require(table[block] >= 0 && table[block] < n_pages, op, "block_table", table[block],
            "0..{} at block {} of request {}", n_pages - 1, block, b);
}

}  // namespace kdt::cpu
