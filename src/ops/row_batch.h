// The rows of one forward pass, shared by every op that knows about requests.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kdt {

inline constexpr int kPageTokens = 64;  // tokens of a KV page, for target and drafter alike

// An execution queue of the backend; the CPU backend has only the null stream (calls return when
// the work is done).
struct Stream {
  void* handle = nullptr;
};

inline constexpr size_t kWorkspaceAlignment = 16;  // bytes

// Scratch memory of one op call (of verify_attention: from its plan to the last call that uses it),
// allocated at plan time: sizes come from `<op>_workspace`. Calls that may run at the same time
// need one each.
struct Workspace {
  void* data = nullptr;
  size_t bytes = 0;
};

// B requests, each owning the rows row_offset[b] .. row_offset[b] + n_nodes[b] - 1 of every
// [R, ...] buffer. Rows of different requests never overlap. Rows owned by nobody are padding.
// A padded [B, N] layout is row_offset[b] = b * N. All arrays are in backend memory.
struct RowBatch {
  int32_t n_requests = 0;                // B
  int32_t n_rows = 0;                    // R, rows of the buffers
  const int32_t* row_offset = nullptr;   // [B]
  const int32_t* n_nodes = nullptr;      // [B] rows in use, the root included; 0 = request idle
  const int32_t* prefix_len = nullptr;   // [B] tokens in the paged cache = position of the root
  const int32_t* block_table = nullptr;  // [B, max_blocks] page of tokens 64 * j .. 64 * j + 63
  int32_t max_blocks = 0;

  // Whether these are the same arrays, whatever they hold.
  bool operator==(const RowBatch&) const = default;
};

}  // namespace kdt
