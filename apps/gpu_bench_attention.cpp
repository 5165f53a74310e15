// GPU bench of tree-verify attention: the grid of shapes for which bench/anchors holds another
// kernel's times, with real draft trees. Every shape is checked before it is timed.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>

#include "apps/gpu_bench.h"
#include "base/dtype.h"
#include "base/error.h"

namespace kdt::apps {
namespace {

constexpr int32_t kLatent = 512, kRope = 64, kWidth = kLatent + kRope;
constexpr const char* kAnchors = "bench/anchors/h200_flashmla_dense.csv";

struct Shape {
  int32_t batch, heads, nodes, n_keys;  // n_keys: prefix and tree
  double anchor_us;

  int32_t prefix() const { return n_keys - nodes; }
  int32_t blocks() const { return (n_keys + kPageTokens - 1) / kPageTokens; }
  // One H200 at 800 TFLOP/s and 4.25 TB/s.
  double floor_us() const {
    const double queries = double{1} * batch * nodes * heads, keys = double{1} * batch * n_keys;
    return 1e6 * std::max(2 * queries * n_keys * (kWidth + kLatent) / 800e12,
                          (keys * kWidth * 2 + queries * (kWidth + kLatent) * 2) / 4.25e12);
  }
};

std::vector<Shape> read_anchors(const std::string& path) {
  std::ifstream file(path);
  if (!file) throw_error(ErrorCode::kIo, "{}: cannot be read", path);
  std::vector<Shape> shapes;
  std::string line;
  std::getline(file, line);
  for (int number = 2; std::getline(file, line); ++number) {
    Shape s;
    if (std::sscanf(line.c_str(), "%d,%d,%d,%d,%lf", &s.batch, &s.heads, &s.nodes, &s.n_keys,
                    &s.anchor_us) != 5)
      throw_error(ErrorCode::kBadFile, "{}:{}: expected batch,heads,q_len,kv_len,us, found '{}'",
                  path, number, line);
    shapes.push_back(s);
  }
  return shapes;
}

// What is measured of an implementation.
struct Variant {
  const char* implementation;
  DType kv_dtype = DType::kBF16;
  bool batch_invariant = false;
  int32_t fewest_keys = 0;  // of the shapes it is measured at
};

// Data that all shapes cut their problems from: queries, keys, trees, outputs.
class Pool {
 public:
  Pool(const Backend& backend, DType dtype, const std::vector<Shape>& shapes)
      : backend_(backend), data_(backend), dtype_(dtype) {
    for (const Shape& s : shapes) {
      n_pages_ = std::max(n_pages_, int64_t{s.batch} * s.blocks());
      n_queries_ = std::max(n_queries_, int64_t{s.batch} * s.nodes * s.heads);
      batch_ = std::max(batch_, s.batch);
    }
    queries_ = repeat(rows(DType::kBF16, 50'021), n_queries_, kWidth * 2);
    keys_ = repeat(rows(dtype, 100'003), n_pages_ * kPageTokens, kWidth * dtype_bytes(dtype));
    if (dtype == DType::kF8E4M3)
      scales_ = data_.put(std::vector<float>(n_pages_ * kPageTokens, kScale));
    out_ = data_.zeros<uint16_t>(n_queries_ * kLatent);
    lse_ = data_.zeros<float>(n_queries_);
  }

  VerifyAttentionParams problem(const Shape& s, const Variant& variant) {
    std::vector<int32_t> offsets, table;
    for (int32_t b = 0; b < s.batch; ++b) offsets.push_back(b * s.nodes);
    for (int32_t i = s.batch * s.blocks(); i-- > 0;) table.push_back(i);
    VerifyAttentionParams p = {
        .rows = {.n_requests = s.batch,
                 .n_rows = s.batch * s.nodes,
                 .row_offset = data_.put(offsets),
                 .n_nodes = data_.put(std::vector<int32_t>(s.batch, s.nodes)),
                 .prefix_len = data_.put(std::vector<int32_t>(s.batch, s.prefix())),
                 .block_table = data_.put(table),
                 .max_blocks = s.blocks()},
        .q = queries_,
        .kv_pages = keys_,
        .tail = keys_,
        .page_scales = scales_,
        .tail_scales = scales_,
        .ancestors = trees(s.nodes),
        .out = out_,
        .lse = lse_,
        .n_words = (s.nodes + 63) / 64,
        .n_heads = s.heads,
        .n_pages = s.batch * s.blocks(),
        .scale = 1.0f / 24.0f,
        .q_dtype = DType::kBF16,
        .kv_dtype = dtype_,
        .out_dtype = DType::kBF16,
        .batch_invariant = variant.batch_invariant};
    p.workspace = workspace(*cuda_backend(), p);
    return p;
  }

  Workspace workspace(const Backend& backend, const VerifyAttentionParams& p) {
    const size_t bytes = verify_attention_workspace(backend, p);
    if (workspace_.bytes < bytes) workspace_ = data_.workspace(bytes);
    return workspace_;
  }
  GpuData& data() { return data_; }

 private:
  static constexpr float kScale = 0.01f;
  static constexpr int32_t kTrees = 8;

  std::vector<uint8_t> rows(DType dtype, size_t count) {
    std::vector<uint8_t> block(count * kWidth * dtype_bytes(dtype));
    for (size_t i = 0; i < count * kWidth; ++i) {
      const float x = data_.normal();
      const uint16_t wide = f32_to_bf16(x);
      if (dtype == DType::kBF16)
        std::copy_n(reinterpret_cast<const uint8_t*>(&wide), 2, &block[2 * i]);
      else
        block[i] = f32_to_f8e4m3(x / kScale);
    }
    return block;
  }

  // An odd number of rows again and again, so that two requests differ page by page.
  uint8_t* repeat(const std::vector<uint8_t>& block, int64_t n_rows, size_t row_bytes) {
    const size_t bytes = n_rows * row_bytes;
    auto* to = data_.zeros<uint8_t>(bytes);
    for (size_t at = 0; at < bytes; at += block.size()) {
      const size_t count = std::min(block.size(), bytes - at);
      if (at == 0)
        backend_.copy_in(to, block.data(), count, {});
      else
        backend_.copy(to + at, to, count, {});
    }
    return to;
  }

  // Ancestor words of the largest batch; every eighth request has the same tree.
  uint64_t* trees(int32_t nodes) {
    uint64_t*& all = trees_[nodes];
    if (all) return all;
    const uint64_t* some = tree_ancestors(backend_, data_, kTrees, nodes - 1);
    const size_t words = static_cast<size_t>(kTrees) * nodes * ((nodes + 63) / 64);
    all = data_.zeros<uint64_t>(words * ((batch_ + kTrees - 1) / kTrees));
    for (int32_t b = 0; b < batch_; b += kTrees)
      backend_.copy(all + b / kTrees * words, some, words * sizeof(uint64_t), {});
    return all;
  }

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

// The first nodes of the last request in fp32 arithmetic against the same rows of the whole call.
double relative_error(const Backend& backend, Pool& pool, const VerifyAttentionParams& p,
                      const Shape& s) {
  const Backend& exact = *cuda_backend_with_attention("simt");
  const int32_t nodes = s.n_keys <= 1024 ? s.nodes : std::min(s.nodes, 4), last = s.batch - 1;
  const size_t count = static_cast<size_t>(nodes) * s.heads * kLatent;
  const size_t row = static_cast<size_t>(last) * s.nodes;
  Buffer<char> want(backend, static_cast<size_t>(s.nodes) * s.heads * (kLatent + 1) * 4);
  VerifyAttentionParams one = p;
  one.rows.n_requests = 1;
  one.rows.n_rows = p.rows.n_rows - static_cast<int32_t>(row);
  one.rows.n_nodes = pool.data().put(std::vector<int32_t>{nodes});
  one.rows.block_table += static_cast<size_t>(last) * s.blocks();
  one.q = static_cast<const uint16_t*>(p.q) + row * s.heads * kWidth;
  one.tail = static_cast<const uint8_t*>(p.tail) + row * kWidth * dtype_bytes(p.kv_dtype);
  if (one.tail_scales) one.tail_scales += row;
  one.ancestors += row * p.n_words;
  one.out = want.data();
  one.lse =
      reinterpret_cast<float*>(want.data()) + static_cast<size_t>(s.nodes) * s.heads * kLatent;
  one.out_dtype = DType::kF32;
  verify_attention(exact, one);
  std::vector<float> ref(count);
  std::vector<uint16_t> got(count);
  backend.copy_out(ref.data(), want.data(), count * 4, {});
  backend.copy_out(got.data(), static_cast<const uint16_t*>(p.out) + row * s.heads * kLatent,
                   count * 2, {});
  backend.synchronize({});
  double difference = 0, norm = 0;
  for (size_t i = 0; i < count; ++i) {
    const double d = double{bf16_to_f32(got[i])} - ref[i];
    difference += d * d;
    norm += double{ref[i]} * ref[i];
  }
  return std::sqrt(difference / norm);
}

// Geometric mean and largest of time over the anchor's.
struct Ratios {
  double logs = 0, largest = 0;
  int n = 0;

  void add(double ratio) {
    logs += std::log(ratio);
    largest = std::max(largest, ratio);
    ++n;
  }
  std::string text() const {
    return n ? fmt::format("{:.3f} (largest {:.2f}, {} shapes)", std::exp(logs / n), largest, n)
             : "none";
  }
};

void bench_variant(const GpuBenchOptions& options, const std::string& file,
                   const Variant& variant) {
  const Backend* backend = cuda_backend_with_attention(variant.implementation);
  if (!backend) return;  // not for this device
  const std::vector<Shape> shapes = read_anchors(kAnchors);
  Pool pool(*backend, variant.kv_dtype, shapes);
  CsvFile csv(options, file,
              "batch,heads,q_len,kv_len,us,floor_us,anchor_us,floor_ratio,anchor_ratio");
  Ratios trees, roots;
  std::map<int32_t, Ratios> by_keys;
  double largest_error = 0;
  for (const Shape& s : shapes) {
    if (s.n_keys < variant.fewest_keys) continue;
    const VerifyAttentionParams p = pool.problem(s, variant);
    verify_attention(*backend, p);
    const double error = relative_error(*backend, pool, p, s);
    if (!(error < 5e-3))
      throw_error(ErrorCode::kNumeric,
                  "verify_attention is wrong at batch {}, {} heads, {} nodes, {} keys: relative "
                  "error {:.2e}",
                  s.batch, s.heads, s.nodes, s.n_keys, error);
    const double us =
        gpu_us(*backend, [&](Stream stream) { verify_attention(*backend, p, stream); });
    csv.row(fmt::format("{},{},{},{},{:.1f},{:.1f},{:.1f},{:.2f},{:.2f}", s.batch, s.heads, s.nodes,
                        s.n_keys, us, s.floor_us(), s.anchor_us, us / s.floor_us(),
                        us / s.anchor_us));
    largest_error = std::max(largest_error, error);
    (s.nodes > 1 ? trees : roots).add(us / s.anchor_us);
    if (s.nodes > 1) by_keys[s.n_keys].add(us / s.anchor_us);
  }
  fmt::print("{}: largest error {:.1e}; time over the anchor, geometric mean: q_len > 1 {}\n", file,
             largest_error, trees.text());
  for (const auto& [n_keys, ratios] : by_keys) fmt::print("  {} keys {}\n", n_keys, ratios.text());
  fmt::print("  q_len 1 {}\n", roots.text());
}

}  // namespace

void bench_verify_attention(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention.csv", {""});
}

void bench_verify_attention_mma(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention_mma.csv", {"mma"});
}

void bench_verify_attention_mma_small(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention_mma_small.csv", {"mma_small"});
}

void bench_verify_attention_fp8(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention_fp8.csv", {"", DType::kF8E4M3, false, 65536});
}

void bench_verify_attention_batch_invariant(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention_batch_invariant.csv", {"", DType::kBF16, true});
}

}  // namespace kdt::apps
