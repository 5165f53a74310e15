// One task per (request, depth): a pass that selects the best k, then a pass for the log-sum-exp.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/logit_kernels.h"
#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/top_select.h"

namespace kdt::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr int kMaxK = 1024;

const void* row_logits(const DraftTopkParams& p, int64_t row) {
  return static_cast<const char*>(p.logits) + row * p.row_stride * dtype_bytes(p.dtype);
}

// The best k of a row as sorted keys; returns how many, or -1 for NaN or +inf.
int64_t select_row(const DraftTopkParams& p, int64_t row, uint64_t* keys, size_t capacity) {
  constexpr int kStep = 64;
  TopSelect top(keys, capacity, static_cast<size_t>(p.k));
  bool valid = true;
  for_each_block(row_logits(p, row), p.dtype, p.vocab, [&](const float* x, int n, int32_t first) {
    for (int start = 0; start < n; start += kStep) {
      const int end = std::min(start + kStep, n);
      float largest;
      valid &= logit_kernels().scan(x + start, end - start, &largest);
      if (!(largest > top.threshold())) continue;
      for (int i = start; i < end; ++i) top.offer(x[i], first + i);
    }
  });
  return valid ? static_cast<int64_t>(top.finish()) : -1;
}

// fp32 within a block, float64 across blocks: within an ulp or so of the exact sum.
float log_sum_exp(const DraftTopkParams& p, int64_t row, float max_logit) {
  double total = 0.0;
  for_each_block(row_logits(p, row), p.dtype, p.vocab, [&](const float* x, int n, int32_t) {
    total += logit_kernels().exp_sum(x, n, max_logit);
  });
  return static_cast<float>(max_logit + std::log(total));
}

// Returns false, outputs empty, when the row holds NaN or +inf.
bool topk_row(const DraftTopkParams& p, int64_t row) {
  uint64_t keys[4 * kMaxK];
  const int64_t n = select_row(p, row, keys, std::max<size_t>(4 * p.k, 256));
  const float log_z = n > 0 ? log_sum_exp(p, row, key_logit(keys[0])) : -kInf;
  if (p.log_z) p.log_z[row] = log_z;
  float* logp = p.logp + row * p.k;
  int32_t* ids = p.ids + row * p.k;
  for (int32_t i = 0; i < p.k; ++i) {
    const float logit = i < n ? key_logit(keys[i]) : -kInf;
    logp[i] = p.shard || i >= n ? logit : logit - log_z;
    ids[i] = i < n ? p.first_id + key_id(keys[i]) : -1;
  }
  return n >= 0;
}

}  // namespace

size_t draft_topk_workspace(const DraftTopkParams& largest) {
  return static_cast<size_t>(largest.batch) * largest.depth;
}

void draft_topk(const DraftTopkParams& p, Stream) {
  const int64_t n_rows = int64_t{p.batch} * p.depth;
  bool* valid = static_cast<bool*>(p.workspace.data);  // [B, L]
  parallel_for(n_rows, n_rows * p.vocab > 8192,
               [&](int64_t row) { valid[row] = topk_row(p, row); });
  for (int64_t b = 0; b < p.batch; ++b) {
    const bool* first = valid + b * p.depth;
    p.status[b] = std::find(first, first + p.depth, false) != first + p.depth;
    if (p.status[b] == 0) continue;
    const int64_t n_entries = int64_t{p.depth} * p.k;
    std::fill_n(p.logp + b * n_entries, n_entries, -kInf);
    std::fill_n(p.ids + b * n_entries, n_entries, -1);
    if (p.log_z) std::fill_n(p.log_z + b * p.depth, p.depth, -kInf);
  }
}

}  // namespace kdt::cpu
