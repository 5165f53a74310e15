// One verify_attention call as plain vectors, its float64 definition, and a way to run it.
#pragma once

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "base/dtype.h"
#include "ops/verify_attention.h"
#include "tests/ops/arrays.h"
#include "tests/ops/random.h"

namespace kdt::test {

struct AttentionProblem {
  int heads = 1, latent = 16, rope = 0, n_pages = 0, max_blocks = 0, n_words = 0, n_rows = 0;
  float scale = 1.0f;
  DType q_dtype = DType::kF32, kv_dtype = DType::kF32, out_dtype = DType::kF32;
  std::vector<float> q, pages, tail;            // already rounded to their dtypes
  std::vector<float> page_scales, tail_scales;  // of FP8 keys, one a row; else empty
  bool batch_invariant = false;
  std::vector<int32_t> row_offset, n_nodes, prefix_len, block_table;
  std::vector<uint64_t> ancestors;  // empty = causal chain

  int width() const { return latent + rope; }
  bool used(int row) const {
    for (size_t b = 0; b < row_offset.size(); ++b)
      if (row >= row_offset[b] && row < row_offset[b] + n_nodes[b]) return true;
    return false;
  }
  bool sees(int row, int node, int i) const {
    if (ancestors.empty()) return i <= node;
    return ancestors[static_cast<size_t>(row + node) * n_words + i / 64] >> (i % 64) & 1;
  }
};

struct AttentionResult {
  std::vector<float> out, lse;  // out widened; elements of padding rows hold the poison
  bool operator==(const AttentionResult&) const = default;
};

inline float rounded(float x, DType dtype) {
  if (dtype == DType::kBF16) return bf16_to_f32(f32_to_bf16(x));
  if (dtype == DType::kF16) return f16_to_f32(f32_to_f16(x));
  return x;
}

// Values in a backend's memory as `dtype`; FP8 rows of `width` values each have a scale.
inline Array<char> typed_array(const Backend& backend, const std::vector<float>& x, DType dtype,
                               const std::vector<float>& scales = {}, int width = 1) {
  std::vector<char> bytes(x.size() * dtype_bytes(dtype));
  for (size_t i = 0; i < x.size(); ++i) {
    if (dtype == DType::kF8E4M3) {
      bytes[i] = static_cast<char>(f32_to_f8e4m3(scales.empty() ? x[i] : x[i] / scales[i / width]));
      continue;
    }
    const uint16_t code = dtype == DType::kBF16 ? f32_to_bf16(x[i]) : f32_to_f16(x[i]);
    if (dtype == DType::kF32)
      std::memcpy(&bytes[i * 4], &x[i], 4);
    else
      std::memcpy(&bytes[i * 2], &code, 2);
  }
  return Array<char>(backend, bytes);
}

// A workspace that calls share; each leaves its remains to the next. Where raw_memory is set every
// call has one of its own, that nothing has written.
class SharedScratch {
 public:
  // `bytes` between guards, the last of them checked by the next call.
  Workspace workspace(const Backend& backend, size_t bytes) {
    expect_guard();
    backend_ = &backend;
    used_ = bytes;
    const size_t size = bytes + kGuard;
    if (raw_memory || !scratch_ || scratch_->workspace().bytes < size)
      scratch_ = std::make_unique<Scratch>(backend, raw_memory ? size : size + bytes / 2);
    const std::vector<char> guard(kGuard, kGuardByte);
    backend.copy_in(data() + used_, guard.data(), kGuard, {});
    return {data(), bytes};
  }
  ~SharedScratch() { expect_guard(); }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr char kGuardByte = '\x5B';

  char* data() { return static_cast<char*>(scratch_->workspace().data); }
  void expect_guard() {
    if (!scratch_) return;
    std::vector<char> guard(kGuard);
    backend_->copy_out(guard.data(), data() + used_, kGuard, {});
    backend_->synchronize({});
    EXPECT_EQ(std::count(guard.begin(), guard.end(), kGuardByte), static_cast<ptrdiff_t>(kGuard))
        << "an op wrote behind its workspace";
  }

  std::unique_ptr<Scratch> scratch_;
  const Backend* backend_ = nullptr;
  size_t used_ = 0;
};

// A problem in a backend's memory. Backends that share the memory may run it as often as they like;
// every run writes to poisoned outputs of its own.
class AttentionCall {
 public:
  AttentionCall(const Backend& memory, const AttentionProblem& a)
      : a_(a),
        memory_(memory),
        q_(typed_array(memory, a.q, a.q_dtype)),
        tail_(typed_array(memory, a.tail, a.kv_dtype, a.tail_scales, a.width())),
        pages_(typed_array(memory, a.pages, a.kv_dtype, a.page_scales, a.width())),
        page_scales_(memory, a.page_scales),
        tail_scales_(memory, a.tail_scales),
        row_offset_(memory, a.row_offset),
        n_nodes_(memory, a.n_nodes),
        prefix_len_(memory, a.prefix_len),
        block_table_(memory, a.block_table),
        ancestors_(memory, a.ancestors) {}

  void set_queries(const std::vector<float>& q) { q_ = typed_array(memory_, q, a_.q_dtype); }

  // Without `plans`, by the plan that an earlier run has left in the workspace.
  AttentionResult run(const Backend& backend, SharedScratch* shared = nullptr, bool plans = true) {
    const size_t n_out = static_cast<size_t>(a_.n_rows) * a_.heads * a_.latent;
    auto out = poisoned<char>(memory_, n_out * dtype_bytes(a_.out_dtype));
    auto lse = poisoned<float>(memory_, static_cast<size_t>(a_.n_rows) * a_.heads);
    VerifyAttentionParams p = params();
    p.out = out.data();
    p.lse = lse.data();
    SharedScratch own;
    p.workspace =
        (shared ? shared : &own)->workspace(backend, verify_attention_workspace(backend, p));
    if (plans) verify_attention_plan(backend, p);
    verify_attention(backend, p);
    return {widened(out.get(), n_out), lse.get()};
  }

 private:
  VerifyAttentionParams params() {
    return {.rows = {.n_requests = static_cast<int32_t>(a_.row_offset.size()),
                     .n_rows = a_.n_rows,
                     .row_offset = row_offset_.data(),
                     .n_nodes = n_nodes_.data(),
                     .prefix_len = prefix_len_.data(),
                     .block_table = block_table_.data(),
                     .max_blocks = a_.max_blocks},
            .q = q_.data(),
            .kv_pages = pages_.data(),
            .tail = tail_.data(),
            .page_scales = page_scales_.data(),
            .tail_scales = tail_scales_.data(),
            .ancestors = a_.ancestors.empty() ? nullptr : ancestors_.data(),
            .n_words = a_.n_words,
            .n_heads = a_.heads,
            .n_pages = a_.n_pages,
            .latent_dim = a_.latent,
            .rope_dim = a_.rope,
            .scale = a_.scale,
            .q_dtype = a_.q_dtype,
            .kv_dtype = a_.kv_dtype,
            .out_dtype = a_.out_dtype,
            .batch_invariant = a_.batch_invariant};
  }

  std::vector<float> widened(const std::vector<char>& bytes, size_t count) const {
    std::vector<float> wide(count);
    for (size_t i = 0; i < count; ++i) {
      uint16_t code = 0;
      if (a_.out_dtype == DType::kF32)
        std::memcpy(&wide[i], &bytes[i * 4], 4);
      else
        std::memcpy(&code, &bytes[i * 2], 2);
      if (a_.out_dtype == DType::kBF16) wide[i] = bf16_to_f32(code);
      if (a_.out_dtype == DType::kF16) wide[i] = f16_to_f32(code);
    }
    return wide;
  }

  const AttentionProblem& a_;
  const Backend& memory_;
  Array<char> q_, tail_, pages_;
  Array<float> page_scales_, tail_scales_;
  Array<int32_t> row_offset_, n_nodes_, prefix_len_, block_table_;
  Array<uint64_t> ancestors_;
};

inline AttentionResult run(const Backend& backend, const AttentionProblem& a) {
  return AttentionCall(backend, a).run(backend);
}

struct AttentionReference {
  std::vector<double> out, lse;  // 0 and -inf where nobody writes
};

inline AttentionReference reference(const AttentionProblem& a) {
  constexpr double kInf = std::numeric_limits<double>::infinity();
  AttentionReference r;
  r.out.resize(static_cast<size_t>(a.n_rows) * a.heads * a.latent);
  r.lse.assign(static_cast<size_t>(a.n_rows) * a.heads, -kInf);
  const int width = a.width();
  for (size_t b = 0; b < a.row_offset.size(); ++b) {
    for (int node = 0; node < a.n_nodes[b]; ++node) {
      const int row = a.row_offset[b] + node;
      std::vector<const float*> keys;
      for (int i = 0; i < a.prefix_len[b]; ++i) {
        const size_t page = a.block_table[b * a.max_blocks + i / 64];
        keys.push_back(&a.pages[(page * 64 + i % 64) * width]);
      }
      for (int i = 0; i < a.n_nodes[b]; ++i) {
        if (a.sees(a.row_offset[b], node, i))
          keys.push_back(&a.tail[static_cast<size_t>(a.row_offset[b] + i) * width]);
      }
      for (int h = 0; h < a.heads; ++h) {
        const size_t query = static_cast<size_t>(row) * a.heads + h;
        std::vector<double> scores;
        for (const float* key : keys) {
          double s = 0;
          for (int d = 0; d < width; ++d) s += double{a.q[query * width + d]} * key[d];
          scores.push_back(s * a.scale);
        }
        if (keys.empty()) continue;
        const double peak = *std::max_element(scores.begin(), scores.end());
        double total = 0;
        for (double& s : scores) total += s = std::exp(s - peak);
        r.lse[query] = peak + std::log(total);
        for (size_t i = 0; i < keys.size(); ++i)
          for (int d = 0; d < a.latent; ++d)
            r.out[query * a.latent + d] += scores[i] / total * keys[i][d];
      }
    }
  }
  return r;
}

// Parents of a random tree of n nodes no deeper than max_depth.
inline std::vector<int> random_parents(Random& random, int n, int max_depth) {
  std::vector<int> parents = {-1}, depth = {0};
  while (static_cast<int>(parents.size()) < n) {
    const int parent = static_cast<int>(random.integer(0, static_cast<int64_t>(depth.size()) - 1));
    if (depth[parent] >= max_depth) continue;
    parents.push_back(parent);
    depth.push_back(depth[parent] + 1);
  }
  return parents;
}

// Adds a request (rows behind those there are, pages dealt from the end of the pool) with random
// keys and queries. parents empty = a causal chain of n rows.
inline void add_request(AttentionProblem& a, Random& random, int prefix, int n,
                        const std::vector<int>& parents, float magnitude = 1.0f) {
  const int b = static_cast<int>(a.row_offset.size()), blocks = (prefix + 63) / 64;
  a.row_offset.push_back(a.n_rows);
  a.n_nodes.push_back(n);
  a.prefix_len.push_back(prefix);
  const int max_blocks = std::max({a.max_blocks, blocks, 1});
  std::vector<int32_t> table(static_cast<size_t>(b + 1) * max_blocks, -1);
  for (int r = 0; r < b; ++r)
    std::copy_n(&a.block_table[static_cast<size_t>(r) * a.max_blocks], a.max_blocks,
                &table[static_cast<size_t>(r) * max_blocks]);
  for (int i = 0; i < blocks; ++i)
    table[static_cast<size_t>(b) * max_blocks + i] = a.n_pages + blocks - 1 - i;
  a.max_blocks = max_blocks;
  a.block_table = table;
  a.n_pages += blocks;
  a.n_rows += n;
  const auto extend = [&](std::vector<float>& x, size_t count, DType dtype) {
    for (size_t i = 0; i < count; ++i) x.push_back(rounded(magnitude * random.normal(), dtype));
  };
  const auto extend_keys = [&](std::vector<float>& x, std::vector<float>& scales, size_t rows) {
    if (a.kv_dtype != DType::kF8E4M3) return extend(x, rows * a.width(), a.kv_dtype);
    for (size_t row = 0; row < rows; ++row) {
      const float scale = magnitude * static_cast<float>(0.002 + 0.02 * random.uniform());
      scales.push_back(scale);
      for (int d = 0; d < a.width(); ++d)
        x.push_back(f8e4m3_to_f32(f32_to_f8e4m3(magnitude * random.normal() / scale)) * scale);
    }
  };
  extend(a.q, static_cast<size_t>(n) * a.heads * a.width(), a.q_dtype);
  extend_keys(a.pages, a.page_scales, static_cast<size_t>(blocks) * 64);
  extend_keys(a.tail, a.tail_scales, n);
  for (int i = 0; i < static_cast<int>(parents.size()); ++i) {
    std::vector<uint64_t> words(a.n_words);
    for (int node = i; node >= 0; node = parents[node])
      words[node / 64] |= uint64_t{1} << (node % 64);
    a.ancestors.insert(a.ancestors.end(), words.begin(), words.end());
  }
}

// Gives every request room for `max_blocks` pages, of which it has those it had.
inline void widen_table(AttentionProblem& a, int max_blocks) {
  std::vector<int32_t> table(a.row_offset.size() * max_blocks, -1);
  for (size_t b = 0; b < a.row_offset.size(); ++b)
    std::copy_n(&a.block_table[b * a.max_blocks], a.max_blocks, &table[b * max_blocks]);
  a.max_blocks = max_blocks;
  a.block_table = table;
}

// Adds the requests of `more`, which has the same dimensions, behind those of `all`.
inline void append(AttentionProblem& all, const AttentionProblem& more) {
  AttentionProblem sum = all.n_rows ? all : more;
  if (all.n_rows) {
    const auto extend = [](auto& x, const auto& y) { x.insert(x.end(), y.begin(), y.end()); };
    extend(sum.q, more.q);
    extend(sum.pages, more.pages);
    extend(sum.tail, more.tail);
    extend(sum.n_nodes, more.n_nodes);
    extend(sum.prefix_len, more.prefix_len);
    extend(sum.ancestors, more.ancestors);
    for (const int32_t offset : more.row_offset) sum.row_offset.push_back(offset + all.n_rows);
    sum.n_rows += more.n_rows;
    sum.n_pages += more.n_pages;
    sum.max_blocks = std::max(all.max_blocks, more.max_blocks);
    sum.block_table.clear();
    for (const AttentionProblem* part : std::vector<const AttentionProblem*>{&all, &more}) {
      for (size_t b = 0; b < part->row_offset.size(); ++b) {
        for (int i = 0; i < sum.max_blocks; ++i) {
          const int32_t page =
              i < part->max_blocks ? part->block_table[b * part->max_blocks + i] : -1;
          sum.block_table.push_back(page < 0 || part == &all ? page : page + all.n_pages);
        }
      }
    }
  }
  all = sum;
}

}  // namespace kdt::test
