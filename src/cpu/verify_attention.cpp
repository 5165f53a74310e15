// Tree-verify attention. A task is a group of rows of one request times a group of heads. Blocks
// that all its rows see alike are shared by all its queries; the others, around the tail, are
// gathered row by row along the row's path.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/rounding.h"
#include "cpu/attention_block.h"
#include "cpu/logit_kernels.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/row_checks.h"
#include "ops/arguments.h"

namespace kdt::cpu {
namespace {

constexpr const char* kOp = "verify_attention";
constexpr int kMaxQueries = 32;  // of a task: enough reuse of a key block, and it stays in cache

struct Shape {
  explicit Shape(const VerifyAttentionParams& p)
      : width(p.latent_dim + p.rope_dim),
        padded_width(round_up(width, 16)),
        padded_latent(round_up(p.latent_dim, 16)) {}
  int width, padded_width, padded_latent;
};

void narrow(const float* x, DType dtype, int n, void* y) {
  if (dtype == DType::kF32) std::copy_n(x, n, static_cast<float*>(y));
  auto* codes = static_cast<uint16_t*>(y);
  for (int i = 0; dtype == DType::kBF16 && i < n; ++i) codes[i] = f32_to_bf16(x[i]);
  for (int i = 0; dtype == DType::kF16 && i < n; ++i) codes[i] = f32_to_f16(x[i]);
}

// Per-thread scratch memory.
struct Scratch {
  float* acc;     // [kMaxQueries, padded_latent]
  float* q;       // [kMaxQueries, padded_width]
  float* block;   // [64, padded_width] keys as fp32
  int32_t* path;  // [64 n_words] visible tail rows of a row, in path order
};

size_t scratch_bytes(const VerifyAttentionParams& p) {
  const Shape shape(p);
  const size_t floats =
      static_cast<size_t>(kMaxQueries) * (shape.padded_latent + shape.padded_width) +
      static_cast<size_t>(kAttentionBlock) * shape.padded_width;
  const size_t path = static_cast<size_t>(p.n_words) * 64;
  return round_up(floats * sizeof(float) + path * sizeof(int32_t), size_t{64});
}

Scratch scratch_of(const VerifyAttentionParams& p) {
  const Shape shape(p);
  Scratch s;
  s.acc = reinterpret_cast<float*>(static_cast<char*>(p.workspace.data) +
                                   thread_index() * scratch_bytes(p));
  s.q = s.acc + kMaxQueries * shape.padded_latent;
  s.block = s.q + kMaxQueries * shape.padded_width;
  s.path = reinterpret_cast<int32_t*>(s.block + kAttentionBlock * shape.padded_width);
  return s;
}

// Rows [row, row + n_rows) of `request` (node ids), heads [head, head + n_heads).
struct Task {
  int32_t request, row, n_rows, head, n_heads;
};

// How the batch is cut; affects speed only.
struct Grid {
  Grid(const VerifyAttentionParams& p, int64_t n_threads) : p(p) {
    // Every thread gets the same number of tasks of about the same size.
    int64_t n_rows = 0;
    for (int32_t b = 0; b < p.rows.n_requests; ++b) n_rows += p.rows.n_nodes[b];
    const int64_t n_queries = std::max<int64_t>(n_rows * p.n_heads, 1);
    const int64_t n_rounds = ceil_div(n_queries, n_threads * kMaxQueries);
    const auto target = static_cast<int32_t>(ceil_div(n_queries, n_threads * n_rounds));
    task_heads = std::min(p.n_heads, target);
    task_rows = std::clamp(ceil_div(target, p.n_heads), 1, std::max(1, kMaxQueries / p.n_heads));
    head_groups = ceil_div(p.n_heads, task_heads);
  }

  int32_t row_groups(int32_t b) const { return ceil_div(p.rows.n_nodes[b], task_rows); }

  int64_t n_tasks() const {
    int64_t n = 0;
    for (int32_t b = 0; b < p.rows.n_requests; ++b) n += row_groups(b);
    return n * head_groups;
  }

  Task task(int64_t index) const {
    int64_t group = index / head_groups;
    int32_t b = 0;
    for (; group >= row_groups(b); ++b) group -= row_groups(b);
    const auto row = static_cast<int32_t>(group) * task_rows;
    const auto head = static_cast<int32_t>(index % head_groups) * task_heads;
    return {b, row, std::min(task_rows, p.rows.n_nodes[b] - row), head,
            std::min(task_heads, p.n_heads - head)};
  }

  const VerifyAttentionParams& p;
  int32_t task_heads, task_rows, head_groups;
};

class TaskRun {
 public:
  TaskRun(const VerifyAttentionParams& p, const Task& task)
      : p_(p),
        task_(task),
        shape_(p),
        scratch_(scratch_of(p)),
        first_row_(p.rows.row_offset[task.request]),
        prefix_(p.rows.prefix_len[task.request]) {}

  void run() {
    start_queries();
    // Positions below this are the same keys for every row of the task.
    const int32_t shared = p_.ancestors ? prefix_ : prefix_ + task_.row + 1;
    const int32_t n_shared = shared / kAttentionBlock;
    for (int32_t block = 0; block < n_shared; ++block)
      attend(block, shared, queries_, task_.n_rows * task_.n_heads);
    for (int32_t i = 0; i < task_.n_rows; ++i) {
      const int32_t node = task_.row + i;
      const int32_t end = prefix_ + visible_tail(node);
      for (int32_t block = n_shared; block * kAttentionBlock < end; ++block)
        attend(block, end, queries_ + i * task_.n_heads, task_.n_heads);
    }
    finish_queries();
  }

 private:
  size_t query_row(int i) const {  // of [R, H, ...] arrays
    const int32_t node = task_.row + i / task_.n_heads, head = task_.head + i % task_.n_heads;
    return (static_cast<size_t>(first_row_) + node) * p_.n_heads + head;
  }

  void start_queries() {
    for (int i = 0; i < task_.n_rows * task_.n_heads; ++i) {
      const char* q =
          static_cast<const char*>(p_.q) + query_row(i) * shape_.width * dtype_bytes(p_.q_dtype);
      float* acc = scratch_.acc + i * shape_.padded_latent;
      std::fill_n(acc, shape_.padded_latent, 0.0f);
      queries_[i] = {as_padded(q, p_.q_dtype, scratch_.q + i * shape_.padded_width), acc,
                     -std::numeric_limits<float>::infinity(), 0.0f};
    }
  }

  // A row of `width` elements as fp32, padded with zeros: itself where it already is.
  const float* as_padded(const void* row, DType dtype, float* buffer, float scale = 1.0f) const {
    if (dtype == DType::kF32 && shape_.width == shape_.padded_width)
      return static_cast<const float*>(row);
    if (dtype == DType::kF8E4M3) {
      const auto* codes = static_cast<const uint8_t*>(row);
      for (int d = 0; d < shape_.width; ++d) buffer[d] = f8e4m3_to_f32(codes[d]) * scale;
    } else {
      widen(row, dtype, shape_.width, buffer);
    }
    std::fill(buffer + shape_.width, buffer + shape_.padded_width, 0.0f);
    return buffer;
  }

  // How many tail rows `node` sees; fills the path of a tree's node.
  int32_t visible_tail(int32_t node) {
    if (!p_.ancestors) return node + 1;
    const uint64_t* words = p_.ancestors + (static_cast<size_t>(first_row_) + node) * p_.n_words;
    int32_t n = 0;
    for (int32_t w = 0; w < p_.n_words; ++w) {
      for (uint64_t bits = words[w]; bits; bits &= bits - 1)
        scratch_.path[n++] = w * 64 + std::countr_zero(bits);
    }
    return n;
  }

  // The key at `position` of the path that visible_tail() loaded last, as fp32.
  const float* key_row(int32_t position, float* buffer) const {
    const bool cached = position < prefix_, f8 = p_.kv_dtype == DType::kF8E4M3;
    const char* rows = static_cast<const char*>(cached ? p_.kv_pages : p_.tail);
    const float* scales = cached ? p_.page_scales : p_.tail_scales;
    const int32_t i = position - prefix_;  // on the path's tail
    const size_t row =
        cached ? cache_row(p_.rows, task_.request, position)
               : static_cast<size_t>(first_row_) + (p_.ancestors ? scratch_.path[i] : i);
    return as_padded(rows + row * shape_.width * dtype_bytes(p_.kv_dtype), p_.kv_dtype, buffer,
                     f8 ? scales[row] : 1.0f);
  }

  // Positions of `block` below `end`, along that path.
  void attend(int32_t block, int32_t end, AttentionQuery* queries, int n_queries) {
    AttentionKeys keys;
    keys.dim = shape_.padded_width;
    keys.value_dim = shape_.padded_latent;
    keys.scale = p_.scale;
    const int32_t first = block * kAttentionBlock;
    for (int i = 0; i < kAttentionBlock; ++i) {
      const bool visible = first + i < end;
      keys.key[i] =
          visible ? key_row(first + i, scratch_.block + i * shape_.padded_width) : nullptr;
      keys.value[i] = keys.key[i];
    }
    attend_block(keys, queries, n_queries);
  }

  void finish_queries() {
    for (int i = 0; i < task_.n_rows * task_.n_heads; ++i) {
      AttentionQuery& query = queries_[i];
      const float inverse = query.sum == 0.0f ? 0.0f : 1.0f / query.sum;
      for (int d = 0; d < p_.latent_dim; ++d) query.acc[d] *= inverse;
      const size_t row = query_row(i);
      narrow(query.acc, p_.out_dtype, p_.latent_dim,
             static_cast<char*>(p_.out) + row * p_.latent_dim * dtype_bytes(p_.out_dtype));
      p_.lse[row] = query.max + std::log(query.sum);
    }
  }

  const VerifyAttentionParams& p_;
  const Task task_;
  const Shape shape_;
  const Scratch scratch_;
  const int32_t first_row_;
  const int32_t prefix_;
  AttentionQuery queries_[kMaxQueries];
};

// Below about a million multiplications, waking threads costs more than they save.
bool worth_threads(const VerifyAttentionParams& p) {
  int64_t n_scores = 0;
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    const int64_t n = p.rows.n_nodes[b], tail = p.ancestors ? 1 : n / 2 + 1;
    n_scores += n * (p.rows.prefix_len[b] + tail) * p.n_heads;
  }
  return n_scores * (2 * p.latent_dim + p.rope_dim) > 1 << 20;
}

void check_requests(const VerifyAttentionParams& p) {
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    require_rows_inside(kOp, p.rows, b);
    const int32_t row = p.rows.row_offset[b], n = p.rows.n_nodes[b];
    if (n == 0) continue;
    require_prefix_pages(kOp, p.rows, b, p.n_pages);
    if (!p.ancestors) continue;
    require(p.n_words * 64 >= n, kOp, "n_words", p.n_words, "at least {} for {} nodes",
            ceil_div(n, 64), n);
    for (int32_t i = 0; i < n; ++i) {
      const uint64_t* words = p.ancestors + (static_cast<size_t>(row) + i) * p.n_words;
      for (int32_t w = n / 64; w < p.n_words; ++w) {
        const uint64_t outside = w > n / 64 ? words[w] : words[w] >> (n % 64);
        require(outside == 0, kOp, "ancestors", words[w],
                "no bit past node {} in word {} of node {}", n - 1, w, i);
      }
    }
  }
}

}  // namespace

size_t verify_attention_workspace(const VerifyAttentionParams& largest) {
  return max_threads() * scratch_bytes(largest);
}

void verify_attention(const VerifyAttentionParams& p, Stream) {
  check_requests(p);
  const bool threads = worth_threads(p);
  const Grid grid(p, threads ? max_threads() : 1);
  parallel_for(grid.n_tasks(), threads, [&](int64_t i) { TaskRun(p, grid.task(i)).run(); });
}

}  // namespace kdt::cpu
