#include "apps/gpu_bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>

#include "apps/bench.h"
#include "apps/bench_table.h"
#include "apps/commands.h"
#include "apps/output.h"
#include "base/dtype.h"
#include "base/error.h"

namespace kdt::apps {
namespace {

struct GpuBench {
  const char* op;
  void (*run)(const Backend&, const GpuBenchOptions&);
};

constexpr GpuBench kBenches[] = {
    {"tree_build", bench_tree_build},
    {"tree_accept", bench_tree_accept},
    {"kv_commit", bench_kv_commit},
    {"lse_merge", bench_lse_merge},
    {"round", bench_round},
    {"verify_attention", bench_verify_attention},
    {"verify_attention_mixed", bench_verify_attention_mixed},
    {"verify_attention_mma", bench_verify_attention_mma},
    {"verify_attention_mma_small", bench_verify_attention_mma_small},
    {"verify_attention_fp8", bench_verify_attention_fp8},
    {"verify_attention_batch_invariant", bench_verify_attention_batch_invariant},
};

bool is_wanted(const BenchOptions& o, const char* op) {
  return o.ops.empty() || std::find(o.ops.begin(), o.ops.end(), op) != o.ops.end();
}

}  // namespace

std::vector<std::string> gpu_bench_names() {
  std::vector<std::string> names;
  for (const GpuBench& bench : kBenches) names.push_back(bench.op);
  return names;
}

int bench_cuda(const BenchOptions& o) {
  const Backend* backend = cuda_backend();
  if (!backend)
    throw_error(ErrorCode::kUnsupported,
                "--backend cuda: no GPU in this machine, or no CUDA in this build (`make cuda` "
                "makes one that has it)");
  const GpuBenchOptions options = {
      .out_dir = o.csv_dir, .note = fmt::format("{}, {}", bench_origin(), backend->describe())};
  if (!o.csv_dir.empty()) std::filesystem::create_directories(o.csv_dir);
  write_out(options.note + "\n");
  for (const GpuBench& bench : kBenches)
    if (is_wanted(o, bench.op)) bench.run(*backend, options);
  return 0;
}

CsvFile::CsvFile(const GpuBenchOptions& options, const std::string& name,
                 const std::string& columns) {
  write_out(fmt::format("{}: {}\n", name, columns));
  if (options.out_dir.empty()) return;
  const std::filesystem::path path = std::filesystem::path(options.out_dir) / name;
  file_ = std::fopen(path.c_str(), "w");
  if (!file_) throw_error(ErrorCode::kIo, "{}: cannot be written", path.string());
  fmt::print(file_, "# {}\n{}\n", options.note, columns);
}

CsvFile::~CsvFile() {
  if (file_) std::fclose(file_);
}

void CsvFile::row(const std::string& line) {
  write_out(fmt::format("  {}\n", line));
  if (!file_) return;
  fmt::print(file_, "{}\n", line);
  std::fflush(file_);  // what was measured outlives an interrupted run
}

double gpu_us(const Backend& backend, const std::function<void(Stream)>& call) {
  return backend.time_cold(call, 3, 20);
}

GpuData::GpuData(const Backend& backend) : CaseData(backend), table_(size_t{1} << 20) {
  for (float& x : table_) {
    double sum = -6.0;  // twelve uniforms: close to normal
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1p-53;
    x = static_cast<float>(sum);
  }
}

template <typename Fn>
void GpuData::draw(size_t count, const Fn& fn) {
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 4096 == 0) at = random();
    fn(i, table_[(at + i * (at | 1)) % table_.size()]);
  }
}

float* GpuData::normals(size_t count, float scale) {
  std::vector<float> host(count);
  draw(count, [&](size_t i, float x) { host[i] = scale * x; });
  return put(host);
}

std::vector<uint16_t> GpuData::bf16_on_host(size_t count, float scale) {
  std::vector<uint16_t> host(count);
  draw(count, [&](size_t i, float x) { host[i] = f32_to_bf16(scale * x); });
  return host;
}

uint16_t* GpuData::bf16_normals(size_t count, float scale) {
  return put(bf16_on_host(count, scale));
}

uint16_t* GpuData::bf16_peaked(int batch, int depth, int vocab) {
  constexpr int kPeaks = 40;
  std::vector<uint16_t> host = bf16_on_host(static_cast<size_t>(batch) * depth * vocab, 1.5f);
  for (int64_t row = 0; row < int64_t{batch} * depth; ++row) {
    const float top = 16.0f - 0.5f * static_cast<float>(row % depth);
    for (int i = 0; i < kPeaks; ++i)
      host[row * vocab + random() % vocab] =
          f32_to_bf16(top - 2.0f * std::log1p(static_cast<float>(i)) + 0.5f * normal());
  }
  return put(host);
}

}  // namespace kdt::apps
