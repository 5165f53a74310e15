// The drafter's block attention. A task is a group of rows of one request under one KV head, with
// all query heads of that head's group.
#include <algorithm>
#include <limits>

#include "base/rounding.h"
#include "cpu/attention_block.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/row_checks.h"

namespace kdt::cpu {
namespace {

constexpr const char* kOp = "draft_attention";
constexpr int kMaxQueries = 32;  // of a task
constexpr int kMaxRows = 16;

size_t scratch_floats(const DraftAttentionParams& p) {  // acc and q per query, k and v per position
  return static_cast<size_t>(2 * kMaxQueries + 2 * kAttentionBlock) * round_up(p.head_dim, 16);
}

// Rows [row, row + n_rows) of `request`, query heads [head, head + n_heads) of one group.
struct Task {
  int32_t request, row, n_rows, head, n_heads;
};

// How the batch is cut; affects speed only.
struct Grid {
  explicit Grid(const DraftAttentionParams& p) : p(p) {
    group = p.n_heads / p.n_kv_heads;
    task_heads = std::min(group, kMaxQueries);
    task_rows = std::min(kMaxRows, kMaxQueries / task_heads);
    groups_per_kv_head = ceil_div(group, task_heads);
  }

  int32_t row_groups(int32_t b) const { return ceil_div(p.rows.n_nodes[b], task_rows); }

  int64_t n_tasks() const {
    int64_t n = 0;
    for (int32_t b = 0; b < p.rows.n_requests; ++b) n += row_groups(b);
    return n * p.n_kv_heads * groups_per_kv_head;
  }

  Task task(int64_t index) const {
    const int32_t head_groups = p.n_kv_heads * groups_per_kv_head;
    int64_t rows = index / head_groups;
    int32_t b = 0;
    for (; rows >= row_groups(b); ++b) rows -= row_groups(b);
    const auto row = static_cast<int32_t>(rows) * task_rows;
    const auto head_group = static_cast<int32_t>(index % head_groups);
    const int32_t within = head_group % groups_per_kv_head * task_heads;
    return {b, row, std::min(task_rows, p.rows.n_nodes[b] - row),
            head_group / groups_per_kv_head * group + within, std::min(task_heads, group - within)};
  }

  const DraftAttentionParams& p;
  int32_t group, task_heads, task_rows, groups_per_kv_head;
};

// Positions [begin, end).
struct Range {
  int32_t begin, end;
  bool operator==(const Range&) const = default;
};

class TaskRun {
 public:
  TaskRun(const DraftAttentionParams& p, const Task& task)
      : p_(p),
        task_(task),
        kv_head_(task.head / (p.n_heads / p.n_kv_heads)),
        padded_(round_up(p.head_dim, 16)),
        first_row_(p.rows.row_offset[task.request]),
        prefix_(p.rows.prefix_len[task.request]) {
    acc_ = static_cast<float*>(p.workspace.data) + thread_index() * scratch_floats(p);
    q_ = acc_ + kMaxQueries * padded_;
    k_ = q_ + kMaxQueries * padded_;
    v_ = k_ + kAttentionBlock * padded_;
  }

  void run() {
    start_queries();
    const int32_t first = task_.row, last = task_.row + task_.n_rows - 1;
    const int32_t n_blocks = ceil_div(visible(last).end, kAttentionBlock);
    for (int32_t block = visible(first).begin / kAttentionBlock; block < n_blocks; ++block) {
      // Ranges move monotonically with the row, so equal ends mean that all rows see the same.
      if (in_block(first, block) == in_block(last, block)) {
        attend(block, in_block(first, block), queries_, task_.n_rows * task_.n_heads);
        continue;
      }
      for (int32_t i = 0; i < task_.n_rows; ++i)
        attend(block, in_block(first + i, block), queries_ + i * task_.n_heads, task_.n_heads);
    }
    finish_queries();
  }

 private:
  Range visible(int32_t row) const {
    const int32_t position = prefix_ + row;
    const int32_t begin = p_.sliding_window > 0 ? std::max(0, position - p_.sliding_window + 1) : 0;
    return {begin, p_.causal ? position + 1 : prefix_ + p_.rows.n_nodes[task_.request]};
  }

  Range in_block(int32_t row, int32_t block) const {
    const int32_t first = block * kAttentionBlock;
    const Range all = visible(row);
    return {std::clamp(all.begin, first, first + kAttentionBlock),
            std::clamp(all.end, first, first + kAttentionBlock)};
  }

  size_t query_offset(int i) const {
    const int32_t row = task_.row + i / task_.n_heads, head = task_.head + i % task_.n_heads;
    return ((static_cast<size_t>(first_row_) + row) * p_.n_heads + head) * p_.head_dim;
  }

  // A row of head_dim elements padded with zeros: itself where it needs none.
  const float* as_padded(const float* row, float* buffer) const {
    if (p_.head_dim == padded_) return row;
    std::copy_n(row, p_.head_dim, buffer);
    std::fill(buffer + p_.head_dim, buffer + padded_, 0.0f);
    return buffer;
  }

  void start_queries() {
    for (int i = 0; i < task_.n_rows * task_.n_heads; ++i) {
      float* acc = acc_ + i * padded_;
      std::fill_n(acc, padded_, 0.0f);
      queries_[i] = {as_padded(p_.q + query_offset(i), q_ + i * padded_), acc,
                     -std::numeric_limits<float>::infinity(), 0.0f};
    }
  }

  void attend(int32_t block, Range range, AttentionQuery* queries, int n_queries) {
    AttentionKeys keys;
    keys.dim = keys.value_dim = padded_;
    keys.scale = p_.scale;
    for (int i = 0; i < kAttentionBlock; ++i) {
      const int32_t position = block * kAttentionBlock + i;
      keys.key[i] = keys.value[i] = nullptr;
      if (position < range.begin || position >= range.end) continue;
      const bool cached = position < prefix_;
      const size_t row = cached ? cache_row(p_.rows, task_.request, position)
                                : static_cast<size_t>(first_row_) + position - prefix_;
      const size_t offset = (row * p_.n_kv_heads + kv_head_) * p_.head_dim;
      keys.key[i] = as_padded((cached ? p_.k_pages : p_.k) + offset, k_ + i * padded_);
      keys.value[i] = as_padded((cached ? p_.v_pages : p_.v) + offset, v_ + i * padded_);
    }
    attend_block(keys, queries, n_queries);
  }

  void finish_queries() {
    for (int i = 0; i < task_.n_rows * task_.n_heads; ++i) {
      const float inverse = queries_[i].sum == 0.0f ? 0.0f : 1.0f / queries_[i].sum;
      float* out = p_.out + query_offset(i);
      for (int d = 0; d < p_.head_dim; ++d) out[d] = queries_[i].acc[d] * inverse;
    }
  }

  const DraftAttentionParams& p_;
  const Task task_;
  const int32_t kv_head_;
  const int32_t padded_;
  const int32_t first_row_;
  const int32_t prefix_;
  float *acc_, *q_, *k_, *v_;
  AttentionQuery queries_[kMaxQueries];
};

// Below about a million multiplications, waking threads costs more than they save.
bool worth_threads(const DraftAttentionParams& p) {
  int64_t n_scores = 0;
  for (int32_t b = 0; b < p.rows.n_requests; ++b)
    n_scores += int64_t{p.rows.n_nodes[b]} * (p.rows.prefix_len[b] + p.rows.n_nodes[b]);
  return n_scores * p.n_heads * 2 * p.head_dim > 1 << 20;
}

}  // namespace

size_t draft_attention_workspace(const DraftAttentionParams& largest) {
  return max_threads() * scratch_floats(largest) * sizeof(float);
}

void draft_attention(const DraftAttentionParams& p, Stream) {
  for (int32_t b = 0; b < p.rows.n_requests; ++b) {
    require_rows_inside(kOp, p.rows, b);
    if (p.rows.n_nodes[b] > 0) require_prefix_pages(kOp, p.rows, b, p.n_pages);
  }
  const Grid grid(p);
  parallel_for(grid.n_tasks(), worth_threads(p),
               [&](int64_t i) { TaskRun(p, grid.task(i)).run(); });
}

}  // namespace kdt::cpu
