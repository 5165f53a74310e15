// The words of every op's argument check: op, field, what was found, what was expected.
#pragma once

#include <utility>

#include "base/dtype.h"
#include "base/error.h"
#include "ops/backend.h"
#include "ops/row_batch.h"

namespace kdt {

// require(p.k >= 1 && p.k <= kMax, "draft_topk", "k", p.k, "1..{}", kMax)
template <typename T, typename... Args>
void require(bool condition, const char* op, const char* field, const T& found,
             fmt::format_string<Args...> expected, Args&&... args) {
  if (!condition)
    throw_error(ErrorCode::kInvalidArgument, "{}: {} is {}, expected {}", op, field, found,
                fmt::format(expected, std::forward<Args>(args)...));
}

inline void require_pointer(const char* op, const char* field, const void* pointer) {
  require(pointer != nullptr, op, field, "null", "an array");
}

// f32, bf16 or f16: what logits, queries and KV rows may be.
inline void require_float(const char* op, const char* field, DType dtype) {
  require(dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF16, op, field,
          dtype_name(dtype), "f32, bf16 or f16");
}

inline void require_workspace(const char* op, const Workspace& workspace, size_t needed) {
  require(workspace.bytes >= needed && (workspace.data || !needed), op, "workspace.bytes",
          workspace.bytes, "at least {}, the size of {}_workspace", needed, op);
  require(!needed || reinterpret_cast<uintptr_t>(workspace.data) % kWorkspaceAlignment == 0, op,
          "workspace.data", fmt::ptr(workspace.data), "a multiple of {}", kWorkspaceAlignment);
}

// The backend's function for an op: implemented(backend, &Backend::linear, "linear")(p, stream).
template <typename Function>
Function implemented(const Backend& backend, Function Backend::*entry, const char* op) {
  if (!(backend.*entry))
    throw_error(ErrorCode::kUnsupported, "{}: the {} backend does not have this op", op,
                backend.name);
  return backend.*entry;
}

// The arrays of a batch that an op reads.
enum class RowFields { kOffsets, kOffsetsAndCounts };

// Counts are not negative and the arrays named by `fields`, the prefix lengths and the block table
// are there.
void require_rows(const char* op, const RowBatch& rows, RowFields fields);

}  // namespace kdt
