// Kernel times on a GPU, as CSV files: random data, one call captured in a graph, caches cold, the
// median of 20 replays after 3 warm-ups (Backend::time_cold). A graph of one trivial kernel reads
// about 3 us this way, and that is included.
#pragma once

#include <fmt/format.h>

#include <functional>
#include <string>
#include <vector>

#include "apps/bench_data.h"
#include "ops/backend.h"

namespace kdt::apps {

struct GpuBenchOptions {
  std::string out_dir;  // empty: stdout only
  std::string note;     // commit, date and GPU, for the files' first line
};

class CsvFile {
 public:
  // Prints the column names; with an out_dir, creates out_dir/name with a comment line and the
  // column names.
  CsvFile(const GpuBenchOptions& options, const std::string& name, const std::string& columns);
  ~CsvFile();
  CsvFile(const CsvFile&) = delete;
  CsvFile& operator=(const CsvFile&) = delete;

  void row(const std::string& line);

 private:
  std::FILE* file_ = nullptr;  // null: stdout only
};

double gpu_us(const Backend& backend, const std::function<void(Stream)>& call);

// Bytes over the measured copy bandwidth of an H200 (read + written).
inline double memory_floor_us(double bytes) {
  return bytes / 4.25e6;
}

// Logits and caches cut from one table of normal numbers at random places: quick to make where
// there are gigabytes of them.
class GpuData : public CaseData {
 public:
  explicit GpuData(const Backend& backend);

  float normal() { return table_[random() % table_.size()]; }
  float* normals(size_t count, float scale = 1.0f);
  uint16_t* bf16_normals(size_t count, float scale = 1.0f);
  // Logits [batch, depth, vocab] as a trained drafter's: normal, but for 40 tokens of each row that
  // stand out, the i-th about 2 log(1 + i) below the first, which is near 16 less half the depth.
  uint16_t* bf16_peaked(int batch, int depth, int vocab);

 private:
  // fn(i, a normal number) for i below count.
  template <typename Fn>
  void draw(size_t count, const Fn& fn);
  std::vector<uint16_t> bf16_on_host(size_t count, float scale);

  std::vector<float> table_;
};

// Ancestor words of `batch` best-first trees of budget + 1 nodes over random draft logits, request
// after request.
uint64_t* tree_ancestors(const Backend& backend, GpuData& data, int batch, int budget);

// The --op names of --backend cuda.
std::vector<std::string> gpu_bench_names();

// One file each.
void bench_tree_build(const Backend& backend, const GpuBenchOptions& options);
void bench_tree_accept(const Backend& backend, const GpuBenchOptions& options);
void bench_kv_commit(const Backend& backend, const GpuBenchOptions& options);
void bench_lse_merge(const Backend& backend, const GpuBenchOptions& options);
// The parts of a round alone, what each adds to a graph of those before it, and the whole.
void bench_round(const Backend& backend, const GpuBenchOptions& options);
void bench_verify_attention(const Backend& backend, const GpuBenchOptions& options);
// Batches of mixed lengths and numbers of nodes.
void bench_verify_attention_mixed(const Backend& backend, const GpuBenchOptions& options);
// Of one implementation whatever the shape; FP8 keys of 64k and more; the batch-invariant cut.
void bench_verify_attention_mma(const Backend& backend, const GpuBenchOptions& options);
void bench_verify_attention_mma_small(const Backend& backend, const GpuBenchOptions& options);
void bench_verify_attention_fp8(const Backend& backend, const GpuBenchOptions& options);
void bench_verify_attention_batch_invariant(const Backend& backend, const GpuBenchOptions& options);

}  // namespace kdt::apps
