// GPU bench of tree-verify attention: the grid of shapes for which bench/anchors holds another
// kernel's times, with real draft trees. Every shape is checked before it is timed.
#include <algorithm>
#include <cmath>
#include <fstream>

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
};

// The keys of all shapes: one pool of random pages. FP8 rows share one scale.
class Pool {
 public:
  Pool(const Backend& backend, GpuData& data, DType dtype, int64_t n_pages) : dtype_(dtype) {
    const size_t row_bytes = kWidth * dtype_bytes(dtype), n_rows = n_pages * kPageTokens;
    const size_t bytes = n_rows * row_bytes;
    // An odd number of rows is repeated, so that two requests differ page by page.
    std::vector<uint8_t> block(std::min<size_t>(n_rows, 100'003) * row_bytes);
    for (size_t i = 0; i < block.size() / dtype_bytes(dtype); ++i) {
      const float x = data.normal();
      const uint16_t wide = f32_to_bf16(x);
      if (dtype == DType::kBF16)
        std::copy_n(reinterpret_cast<const uint8_t*>(&wide), 2, &block[2 * i]);
      else
        block[i] = f32_to_f8e4m3(x / kScale);
    }
    pages_ = data.zeros<uint8_t>(bytes);
    for (size_t at = 0; at < bytes; at += block.size()) {
      const size_t count = std::min(block.size(), bytes - at);
      if (at == 0)
        backend.copy_in(pages_, block.data(), count, {});
      else
        backend.copy(pages_ + at, pages_, count, {});
    }
    if (dtype == DType::kF8E4M3) scales_ = data.put(std::vector<float>(n_rows, kScale));
  }

  void give(VerifyAttentionParams& p) const {
    p.kv_dtype = dtype_;
    p.kv_pages = p.tail = pages_;
    p.page_scales = p.tail_scales = scales_;
  }

 private:
  static constexpr float kScale = 0.01f;

  DType dtype_;
  uint8_t* pages_ = nullptr;
  float* scales_ = nullptr;
};

VerifyAttentionParams attention_problem(const Backend& backend, GpuData& data, const Pool& pool,
                                        const Shape& s, const Variant& variant) {
  std::vector<int32_t> offsets, table;
  for (int32_t b = 0; b < s.batch; ++b) offsets.push_back(b * s.nodes);
  for (int32_t i = s.batch * s.blocks(); i-- > 0;) table.push_back(i);
  const size_t n_queries = static_cast<size_t>(s.batch) * s.nodes * s.heads;
  VerifyAttentionParams p = {
      .rows = {.n_requests = s.batch,
               .n_rows = s.batch * s.nodes,
               .row_offset = data.put(offsets),
               .n_nodes = data.put(std::vector<int32_t>(s.batch, s.nodes)),
               .prefix_len = data.put(std::vector<int32_t>(s.batch, s.prefix())),
               .block_table = data.put(table),
               .max_blocks = s.blocks()},
      .q = data.bf16_normals(n_queries * kWidth),
      .ancestors = tree_ancestors(backend, data, s.batch, s.nodes - 1),
      .out = data.zeros<uint16_t>(n_queries * kLatent),
      .lse = data.zeros<float>(n_queries),
      .n_words = (s.nodes + 63) / 64,
      .n_heads = s.heads,
      .n_pages = s.batch * s.blocks(),
      .scale = 1.0f / 24.0f,
      .q_dtype = DType::kBF16,
      .out_dtype = DType::kBF16,
      .batch_invariant = variant.batch_invariant};
  pool.give(p);
  p.workspace = data.workspace(verify_attention_workspace(backend, p));
  return p;
}

// The first nodes of the last request in fp32 arithmetic against the same rows of the whole call.
double relative_error(const Backend& backend, GpuData& data, const VerifyAttentionParams& p,
                      const Shape& s) {
  const Backend& exact = *cuda_backend_with_attention("simt");
  const int32_t nodes = s.n_keys <= 4096 ? s.nodes : std::min(s.nodes, 4), last = s.batch - 1;
  const size_t count = static_cast<size_t>(nodes) * s.heads * kLatent;
  const size_t row = static_cast<size_t>(last) * s.nodes;
  VerifyAttentionParams one = p;
  one.rows.n_requests = 1;
  one.rows.n_rows = p.rows.n_rows - static_cast<int32_t>(row);
  one.rows.n_nodes = data.put(std::vector<int32_t>{nodes});
  one.rows.block_table += static_cast<size_t>(last) * s.blocks();
  one.q = static_cast<const uint16_t*>(p.q) + row * s.heads * kWidth;
  one.tail = static_cast<const uint8_t*>(p.tail) + row * kWidth * dtype_bytes(p.kv_dtype);
  one.ancestors += row * p.n_words;
  float* want = data.zeros<float>(static_cast<size_t>(s.nodes) * s.heads * kLatent);
  one.out = want;
  one.lse = data.zeros<float>(static_cast<size_t>(s.nodes) * s.heads);
  one.out_dtype = DType::kF32;
  one.workspace = data.workspace(verify_attention_workspace(exact, one));
  verify_attention(exact, one);
  std::vector<float> ref(count);
  std::vector<uint16_t> got(count);
  backend.copy_out(ref.data(), want, count * 4, {});
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

void bench_variant(const GpuBenchOptions& options, const std::string& file,
                   const Variant& variant) {
  const Backend* backend = cuda_backend_with_attention(variant.implementation);
  if (!backend) return;  // not for this device
  const std::vector<Shape> shapes = read_anchors(kAnchors);
  int64_t n_pages = 0;
  for (const Shape& s : shapes) n_pages = std::max(n_pages, int64_t{s.batch} * s.blocks());
  GpuData pool_data(*backend);
  const Pool pool(*backend, pool_data, variant.kv_dtype, n_pages);
  CsvFile csv(options, file,
              "batch,heads,q_len,kv_len,us,floor_us,anchor_us,floor_ratio,anchor_ratio");
  double log_ratios = 0, largest_ratio = 0, largest_error = 0;
  int n_trees = 0;
  for (const Shape& s : shapes) {
    GpuData data(*backend);
    const VerifyAttentionParams p = attention_problem(*backend, data, pool, s, variant);
    verify_attention(*backend, p);
    const double error = relative_error(*backend, data, p, s);
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
    if (s.nodes == 1) continue;
    log_ratios += std::log(us / s.anchor_us);
    largest_ratio = std::max(largest_ratio, us / s.anchor_us);
    ++n_trees;
  }
  fmt::print(
      "{}: q_len > 1: geometric mean of anchor_ratio {:.3f}, largest {:.2f}; largest error "
      "{:.1e}\n",
      file, std::exp(log_ratios / n_trees), largest_ratio, largest_error);
}

}  // namespace

void bench_verify_attention(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention.csv", {""});
}

void bench_verify_attention_variants(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention_mma.csv", {"mma"});
  bench_variant(options, "verify_attention_mma_small.csv", {"mma_small"});
  bench_variant(options, "verify_attention_f8e4m3.csv", {"", DType::kF8E4M3});
  bench_variant(options, "verify_attention_batch_invariant.csv", {"", DType::kBF16, true});
}

}  // namespace kdt::apps
