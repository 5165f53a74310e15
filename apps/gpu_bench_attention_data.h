// Batches on which tree-verify attention is measured, and their problems in GPU memory.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "apps/gpu_bench.h"

namespace kdt::apps {

struct AttentionBatch {
  int32_t heads;
  std::vector<int32_t> nodes, n_keys;  // of each request; keys of prefix and tree

  static AttentionBatch uniform(int32_t batch, int32_t heads, int32_t nodes, int32_t n_keys) {
    return {heads, std::vector<int32_t>(batch, nodes), std::vector<int32_t>(batch, n_keys)};
  }
  int32_t size() const { return static_cast<int32_t>(nodes.size()); }
  int32_t most_nodes() const;
  int64_t n_pages() const;     // of all requests
  int32_t most_pages() const;  // of one
  // One H200 at 800 TFLOP/s and 4.25 TB/s.
  double floor_us() const;
};

// What is measured of an implementation.
struct AttentionVariant {
  const char* implementation;
  DType kv_dtype = DType::kBF16;
  bool batch_invariant = false;
  int32_t fewest_keys = 0;  // of the shapes it is measured at
};

// Data that all batches cut their problems from: queries, keys, trees, outputs.
class AttentionPool {
 public:
  AttentionPool(const Backend& backend, DType dtype, const std::vector<AttentionBatch>& batches);

  // Rows of the requests are most_nodes() apart. Planned, until the next problem is.
  VerifyAttentionParams problem(const AttentionBatch& batch, const AttentionVariant& variant);

  // Runs the problem once. The first nodes of request `first` and those after it against the same
  // rows in fp32 arithmetic; throws kNumeric where they differ by more than bf16 explains. Returns
  // the relative error.
  double check(const VerifyAttentionParams& p, const AttentionBatch& batch, int32_t first);

 private:
  std::vector<uint8_t> rows(DType dtype, size_t count);
  uint8_t* repeat(const std::vector<uint8_t>& block, int64_t n_rows, size_t row_bytes);
  uint64_t* trees(int32_t nodes);

  const Backend& backend_;
  GpuData data_;
  DType dtype_;
  int64_t n_pages_ = 0, n_queries_ = 0;
  int32_t batch_ = 0;
  uint8_t *queries_ = nullptr, *keys_ = nullptr;
  float* scales_ = nullptr;
  uint16_t* out_ = nullptr;
  float* lse_ = nullptr;
  std::map<int32_t, uint64_t*> trees_;
  Workspace workspace_;
};

}  // namespace kdt::apps
