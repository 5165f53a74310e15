// GPU bench of tree-verify attention, with real draft trees: the grid of shapes for which
// bench/anchors holds another kernel's times, and batches of mixed lengths. Every batch is checked
// before it is timed.
#include <algorithm>
#include <cmath>
#include <fstream>
#include <map>
#include <numeric>

#include "apps/gpu_bench_attention_data.h"
#include "base/error.h"
#include "base/rounding.h"

namespace kdt::apps {
namespace {

constexpr const char* kAnchors = "bench/anchors/h200_flashmla_dense.csv";

struct Shape {
  int32_t batch, heads, nodes, n_keys;  // n_keys: prefix and tree
  double anchor_us;

  AttentionBatch requests() const { return AttentionBatch::uniform(batch, heads, nodes, n_keys); }
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

// Without the plan, which the layers of a model share.
double attention_us(const Backend& backend, const VerifyAttentionParams& p) {
  return gpu_us(backend, [&](Stream stream) { verify_attention(backend, p, stream); });
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
                   const AttentionVariant& variant) {
  const Backend* backend = cuda_backend_with_attention(variant.implementation);
  if (!backend) return;  // not for this device
  const std::vector<Shape> shapes = read_anchors(kAnchors);
  std::vector<AttentionBatch> batches;
  for (const Shape& s : shapes) batches.push_back(s.requests());
  AttentionPool pool(*backend, variant.kv_dtype, batches);
  CsvFile csv(options, file,
              "batch,heads,q_len,kv_len,us,floor_us,anchor_us,floor_ratio,anchor_ratio");
  Ratios trees, roots;
  std::map<int32_t, Ratios> by_keys;
  double largest_error = 0;
  for (const Shape& s : shapes) {
    if (s.n_keys < variant.fewest_keys) continue;
    const AttentionBatch batch = s.requests();
    const VerifyAttentionParams p = pool.problem(batch, variant);
    largest_error = std::max(largest_error, pool.check(p, batch, s.batch - 1));
    const double us = attention_us(*backend, p), floor_us = batch.floor_us();
    csv.row(fmt::format("{},{},{},{},{:.1f},{:.1f},{:.1f},{:.2f},{:.2f}", s.batch, s.heads, s.nodes,
                        s.n_keys, us, floor_us, s.anchor_us, us / floor_us, us / s.anchor_us));
    (s.nodes > 1 ? trees : roots).add(us / s.anchor_us);
    if (s.nodes > 1) by_keys[s.n_keys].add(us / s.anchor_us);
  }
  fmt::print("{}: largest error {:.1e}; time over the anchor, geometric mean: q_len > 1 {}\n", file,
             largest_error, trees.text());
  for (const auto& [n_keys, ratios] : by_keys) fmt::print("  {} keys {}\n", n_keys, ratios.text());
  fmt::print("  q_len 1 {}\n", roots.text());
}

// Requests as a server has them at the same time.
struct Mix {
  const char* name;
  std::vector<int32_t> n_keys;
  std::vector<std::vector<int32_t>> nodes = {{1}, {17}, {65}};  // in turn, of a batch each

  AttentionBatch requests(int32_t heads, const std::vector<int32_t>& counts) const {
    AttentionBatch batch = {heads, {}, n_keys};
    for (size_t b = 0; b < n_keys.size(); ++b) batch.nodes.push_back(counts[b % counts.size()]);
    return batch;
  }
  // The same work in requests of one length.
  AttentionBatch uniform(int32_t heads, int32_t count) const {
    const auto n = static_cast<int32_t>(n_keys.size());
    const int64_t keys = std::accumulate(n_keys.begin(), n_keys.end(), int64_t{0});
    return AttentionBatch::uniform(n, heads, count, static_cast<int32_t>(ceil_div(keys, n)));
  }
};

// Lengths whose logarithms are as far apart, long ones beside short ones.
std::vector<int32_t> spread(int32_t n, int32_t from, int32_t to) {
  std::vector<int32_t> lengths(n);
  for (int32_t i = 0; i < n; ++i) {
    const double x = double{1} * i / (n - 1);
    lengths[i * 5 % n] =
        static_cast<int32_t>(std::lround(from * std::pow(double{1} * to / from, x)));
  }
  return lengths;
}

std::vector<Mix> mixes() {
  constexpr int32_t k = 1024;
  std::vector<int32_t> one_long = spread(32, k, 4 * k), longer8(8, 16 * k), longer32(32, 4 * k);
  one_long[13] = 128 * k;
  longer8[3] += kPageTokens;
  longer32[13] += kPageTokens;
  return {{"32 of 1k to 128k", spread(32, k, 128 * k)},
          {"4 of 1k to 64k", spread(4, k, 64 * k)},
          {"one of 128k and 31 of 1k to 4k", one_long},
          {"8 of 16k and one a page longer", longer8},
          {"32 of 4k and one a page longer", longer32},
          {"32 of 4k", std::vector<int32_t>(32, 4 * k), {{1, 17, 65}}},
          {"32 of 1k to 128k", spread(32, k, 128 * k), {{1, 17, 65}}}};
}

// fn(mix, heads, nodes in turn) for every batch of the bench.
template <typename Fn>
void for_mixes(const Fn& fn) {
  for (const Mix& mix : mixes())
    for (const int32_t heads : {8, 64})
      for (const std::vector<int32_t>& counts : mix.nodes) fn(mix, heads, counts);
}

}  // namespace

void bench_verify_attention(const Backend&, const GpuBenchOptions& options) {
  bench_variant(options, "verify_attention.csv", {""});
}

void bench_verify_attention_mixed(const Backend& backend, const GpuBenchOptions& options) {
  std::vector<AttentionBatch> batches;
  for_mixes([&](const Mix& mix, int32_t heads, const std::vector<int32_t>& counts) {
    batches.push_back(mix.requests(heads, counts));
    batches.push_back(mix.uniform(heads, counts.back()));
  });
  AttentionPool pool(backend, DType::kBF16, batches);
  const auto measured = [&](const AttentionBatch& batch) {
    const VerifyAttentionParams p = pool.problem(batch, {""});
    pool.check(p, batch, 0);
    return attention_us(backend, p);
  };
  CsvFile csv(options, "verify_attention_mixed.csv",
              "keys,heads,q_len,us,floor_us,floor_ratio,uniform_us,uniform_ratio");
  Ratios floors, uniforms;
  for_mixes([&](const Mix& mix, int32_t heads, const std::vector<int32_t>& counts) {
    const AttentionBatch batch = mix.requests(heads, counts);
    const double us = measured(batch), floor_us = batch.floor_us();
    std::string line = fmt::format("{},{},{},{:.1f},{:.1f},{:.2f}", mix.name, heads,
                                   fmt::join(counts, " "), us, floor_us, us / floor_us);
    floors.add(us / floor_us);
    if (counts.size() == 1) {
      const double uniform_us = measured(mix.uniform(heads, counts[0]));
      line += fmt::format(",{:.1f},{:.2f}", uniform_us, us / uniform_us);
      uniforms.add(us / uniform_us);
    } else {
      line += ",,";  // no requests of one length are the same work
    }
    csv.row(line);
  });
  fmt::print("mixed lengths: time over the floor {}; over requests of one length {}\n",
             floors.text(), uniforms.text());
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
