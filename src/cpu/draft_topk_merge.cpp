// The best k of every shard's best k, and the log-sum-exp over the shards' log-sum-exps.
#include <algorithm>
#include <cmath>
#include <limits>

#include "cpu/ops.h"
#include "cpu/parallel.h"
#include "cpu/top_select.h"

namespace kdt::cpu {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr uint64_t kNone = ~uint64_t{0};  // no logit's key
constexpr int kMaxShards = 1024;

float merged_log_z(const DraftTopkMergeParams& p, int64_t row) {
  const int64_t n_rows = int64_t{p.batch} * p.depth;
  float peak = -kInf;
  for (int32_t s = 0; s < p.n_shards; ++s) peak = std::max(peak, p.shard_log_z[s * n_rows + row]);
  if (peak == -kInf) return peak;
  double total = 0.0;
  for (int32_t s = 0; s < p.n_shards; ++s)
    total += std::exp(double{p.shard_log_z[s * n_rows + row]} - peak);
  return static_cast<float>(peak + std::log(total));
}

// Takes the best head of the shards' sorted lists, k times.
void merge_row(const DraftTopkMergeParams& p, int64_t row, bool valid) {
  const int64_t n_rows = int64_t{p.batch} * p.depth;
  const float log_z = valid ? merged_log_z(p, row) : -kInf;
  if (p.log_z) p.log_z[row] = log_z;
  int16_t taken[kMaxShards] = {};
  for (int32_t i = 0; i < p.k; ++i) {
    uint64_t best = kNone;
    int32_t from = 0;
    for (int32_t s = 0; valid && s < p.n_shards; ++s) {
      const int64_t head = (s * n_rows + row) * p.k + taken[s];
      if (taken[s] == p.k || p.shard_ids[head] < 0) continue;
      const uint64_t key = logit_key(p.shard_logits[head], p.shard_ids[head]);
      if (key < best) {
        best = key;
        from = s;
      }
    }
    taken[from] += best != kNone;
    p.logp[row * p.k + i] = best == kNone ? -kInf : key_logit(best) - log_z;
    p.ids[row * p.k + i] = best == kNone ? -1 : key_id(best);
  }
}

}  // namespace

void draft_topk_merge(const DraftTopkMergeParams& p, Stream) {
  for (int32_t b = 0; b < p.batch; ++b) {
    p.status[b] = 0;
    for (int32_t s = 0; s < p.n_shards; ++s) p.status[b] |= p.shard_status[s * p.batch + b];
  }
  const int64_t n_rows = int64_t{p.batch} * p.depth;
  parallel_for(n_rows, n_rows * p.n_shards * p.k > 8192,
               [&](int64_t row) { merge_row(p, row, p.status[row / p.depth] == 0); });
}

}  // namespace kdt::cpu
