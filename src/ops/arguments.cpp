#include "ops/arguments.h"

namespace kdt {

void require_rows(const char* op, const RowBatch& rows, RowFields fields) {
  require(rows.n_requests >= 0, op, "rows.n_requests", rows.n_requests, "0 or more");
  require(rows.n_rows >= 0, op, "rows.n_rows", rows.n_rows, "0 or more");
  require(rows.max_blocks >= 0, op, "rows.max_blocks", rows.max_blocks, "0 or more");
  if (rows.n_requests == 0) return;
  require_pointer(op, "rows.row_offset", rows.row_offset);
  require_pointer(op, "rows.prefix_len", rows.prefix_len);
  if (fields == RowFields::kOffsetsAndCounts) require_pointer(op, "rows.n_nodes", rows.n_nodes);
  if (rows.max_blocks > 0) require_pointer(op, "rows.block_table", rows.block_table);
}

}  // namespace kdt
