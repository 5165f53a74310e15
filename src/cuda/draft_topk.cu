// Two kernels: one CTA for every part of a row (draft_topk_part.cuh), then one for every row
// (draft_topk_order.cuh).
#include <algorithm>
#include <cmath>

#include "base/rounding.h"
#include "cuda/draft_topk_order.cuh"
#include "cuda/launch.h"
#include "cuda/ops.h"

namespace kdt::cuda {
namespace {

constexpr int kUsualParts = 8;
constexpr int kFewBest = 256;                   // what the second kernel orders with few warps
constexpr int kMinKeys = 512, kMaxKeys = 8192;  // that the second kernel holds

int parts_of(const DraftTopkParams& p) {
  if (p.vocab <= device::kSmallVocab) return 1;
  return std::max(ceil_div(p.vocab, kPartLogits), kUsualParts);
}

// How many of the best k logits a part lists at least: four standard deviations above its share.
int least_listed(int k, int n_parts) {
  const double share = static_cast<double>(k) / n_parts;
  return n_parts == 1 ? k : std::min(k, static_cast<int>(share + 4.0 * std::sqrt(share)) + 1);
}

// Entries of a part's list: k at least, and usually room for all that reach the threshold.
int list_size_of(const DraftTopkParams& p) {
  return p.k <= 64 ? 256 : p.k <= 256 ? 512 : 1024;
}

size_t n_parts_in(const DraftTopkParams& p) {
  return static_cast<size_t>(p.batch) * p.depth * parts_of(p);
}

template <typename T>
void launch_for(const TopkTask& task, Stream stream) {
  const DraftTopkParams& p = task.p;
  require_at_most("draft_topk", "batch * depth", int64_t{p.batch} * p.depth, kMostGridYZ);
  const int n_rows = p.batch * p.depth;
  if (n_rows > 0)
    launch(part_kernel<T>,
           {.grid = dim3(task.n_parts, n_rows),
            .block = dim3(kPartThreads),
            .shared_bytes = task.list_size * (sizeof(device::Piece<T>) + sizeof(int))},
           stream, task);
  const int n_list_warps = p.k <= kFewBest ? kListWarps : kManyListWarps;
  const int list_warps = std::max(1, n_list_warps / task.n_parts);
  int capacity = kMinKeys;
  while (capacity < std::min(task.n_parts * task.list_size, kMaxKeys)) capacity *= 2;
  launch(order_kernel<T>,
         {.grid = dim3(n_rows > 0 ? n_rows : p.batch),
          .block = dim3(32 * (n_list_warps + 1)),
          .shared_bytes = RowOrder<T>::shared_bytes(task.n_parts, capacity)},
         stream, task, capacity, list_warps);
}

}  // namespace

size_t draft_topk_workspace(const DraftTopkParams& largest) {
  return n_parts_in(largest) *
         (sizeof(Part) + list_size_of(largest) * sizeof(uint64_t) + kPartWarps * sizeof(uint32_t));
}

void draft_topk(const DraftTopkParams& p, Stream stream) {
  if (p.batch == 0) return;
  const int n_parts = parts_of(p), list_size = list_size_of(p);
  const auto parts = static_cast<Part*>(p.workspace.data);
  const auto lists = reinterpret_cast<uint64_t*>(parts + n_parts_in(p));
  const TopkTask task = {.p = p,
                         .parts = parts,
                         .kth = reinterpret_cast<uint32_t*>(lists + n_parts_in(p) * list_size),
                         .lists = lists,
                         .row_quota = device::quota_of(p.k, kPartWarps * n_parts),
                         .part_quota = device::quota_of(least_listed(p.k, n_parts), kPartWarps),
                         .n_parts = n_parts,
                         .list_size = list_size};
  if (p.dtype == DType::kBF16)
    launch_for<__nv_bfloat16>(task, stream);
  else if (p.dtype == DType::kF16)
    launch_for<__half>(task, stream);
  else
    launch_for<float>(task, stream);
}

}  // namespace kdt::cuda
