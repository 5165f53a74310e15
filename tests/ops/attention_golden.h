// The golden bundles of verify_attention as problems.
#pragma once

#include "tests/ops/attention_problem.h"
#include "tests/ops/golden.h"

namespace kdt::test {

inline AttentionProblem golden_problem(const Golden& g, DType dtype) {
  AttentionProblem a;
  a.heads = static_cast<int>(g.shape("q")[1]);
  a.latent = static_cast<int>(g.shape("out")[2]);
  a.rope = static_cast<int>(g.shape("q")[2]) - a.latent;
  a.n_rows = static_cast<int>(g.shape("q")[0]);
  a.n_pages = static_cast<int>(g.shape("kv_pages")[0]);
  a.max_blocks = static_cast<int>(g.shape("block_table")[1]);
  a.scale = g.scalar<float>("scale");
  a.q_dtype = a.kv_dtype = dtype;
  a.q = g.floats("q");
  a.pages = g.floats("kv_pages");
  a.tail = g.floats("tail");
  a.row_offset = g.get<int32_t>("row_offset");
  a.n_nodes = g.get<int32_t>("n_nodes");
  a.prefix_len = g.get<int32_t>("prefix_len");
  a.block_table = g.get<int32_t>("block_table");
  if (g.has("ancestors")) {
    a.ancestors = g.get<uint64_t>("ancestors");
    a.n_words = static_cast<int>(g.shape("ancestors")[1]);
  }
  return a;
}

}  // namespace kdt::test
