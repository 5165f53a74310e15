#include "apps/gpu_bench.h"

#include <cmath>
#include <cstdio>
#include <filesystem>

#include "base/dtype.h"
#include "base/error.h"

namespace kdt::apps {

CsvFile::CsvFile(const GpuBenchOptions& options, const std::string& name,
                 const std::string& columns)
    : path_(options.out_dir + "/" + name) {
  std::filesystem::create_directories(options.out_dir);
  file_ = std::fopen(path_.c_str(), "w");
  if (!file_) throw_error(ErrorCode::kIo, "{}: cannot be written", path_);
  fmt::print(file_, "# {}\n{}\n", options.note, columns);
  fmt::print("{}: {}\n", name, columns);
}

CsvFile::~CsvFile() {
  std::fclose(file_);
}

void CsvFile::row(const std::string& line) {
  fmt::print(file_, "{}\n", line);
  fmt::print("  {}\n", line);
  std::fflush(stdout);
}

double gpu_us(const Backend& backend, const std::function<void(Stream)>& call) {
  return backend.time_cold(call, 3, 20);
}

GpuData::GpuData(const Backend& backend) : backend_(backend), table_(size_t{1} << 20) {
  for (float& x : table_) {
    double sum = -6.0;  // twelve uniforms: close to normal
    for (int i = 0; i < 12; ++i) sum += static_cast<double>(random() >> 11) * 0x1p-53;
    x = static_cast<float>(sum);
  }
}

uint64_t GpuData::random() {
  uint64_t z = (state_ += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

float* GpuData::normals(size_t count, float scale) {
  std::vector<float> host(count);
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 4096 == 0) at = random();
    host[i] = scale * table_[(at + i * (at | 1)) % table_.size()];
  }
  return put(host);
}

uint16_t* GpuData::bf16_normals(size_t count, float scale) {
  std::vector<uint16_t> host(count);
  uint64_t at = 0;
  for (size_t i = 0; i < count; ++i) {
    if (i % 4096 == 0) at = random();
    host[i] = f32_to_bf16(scale * table_[(at + i * (at | 1)) % table_.size()]);
  }
  return put(host);
}

}  // namespace kdt::apps
