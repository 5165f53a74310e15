#include "apps/bench_roof.h"

#include <fmt/format.h>
#include <immintrin.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <functional>
#include <memory>
#include <numeric>
#include <thread>

#include "apps/bench_table.h"
#include "base/thread.h"

namespace kdt::apps {
namespace {

constexpr double kKiB = 1024.0, kMiB = 1024.0 * kKiB;
constexpr int kChains = 12;  // independent sums: enough to hide the latency of a multiply-add

// Both kernels come in two widths, as the backend's do. Each returns a value that depends on its
// work, so that nothing is optimized away. Unrolled whole, so that the sums stay in registers.
struct Kernels {
  double (*read)(const float* data, size_t count);  // count: a multiple of 64
  double (*multiply_add)(int64_t n);                // n x kChains x lanes multiply-adds
  int lanes;
};

double read_avx2(const float* data, size_t count) {
  __m256 sum[4] = {};
  for (size_t i = 0; i < count; i += 32)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = _mm256_add_ps(sum[j], _mm256_loadu_ps(data + i + 8 * j));
  return _mm256_cvtss_f32(sum[0] + sum[1] + sum[2] + sum[3]);
}

double multiply_add_avx2(int64_t n) {
  __m256 sum[kChains];
  for (int j = 0; j < kChains; ++j) sum[j] = _mm256_set1_ps(static_cast<float>(j));
  const __m256 a = _mm256_set1_ps(0.999f), b = _mm256_set1_ps(0.001f);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm256_fmadd_ps(sum[j], a, b);
  __m256 total = sum[0];
  for (int j = 1; j < kChains; ++j) total = _mm256_add_ps(total, sum[j]);
  return _mm256_cvtss_f32(total);
}

__attribute__((target("avx512f"))) double read_avx512(const float* data, size_t count) {
  __m512 sum[4] = {};
  for (size_t i = 0; i < count; i += 64)
#pragma GCC unroll 4
    for (int j = 0; j < 4; ++j) sum[j] = _mm512_add_ps(sum[j], _mm512_loadu_ps(data + i + 16 * j));
  return _mm512_cvtss_f32(sum[0] + sum[1] + sum[2] + sum[3]);
}

__attribute__((target("avx512f"))) double multiply_add_avx512(int64_t n) {
  __m512 sum[kChains];
  for (int j = 0; j < kChains; ++j) sum[j] = _mm512_set1_ps(static_cast<float>(j));
  const __m512 a = _mm512_set1_ps(0.999f), b = _mm512_set1_ps(0.001f);
  for (int64_t i = 0; i < n; ++i)
#pragma GCC unroll 12
    for (int j = 0; j < kChains; ++j) sum[j] = _mm512_fmadd_ps(sum[j], a, b);
  __m512 total = sum[0];
  for (int j = 1; j < kChains; ++j) total = _mm512_add_ps(total, sum[j]);
  return _mm512_cvtss_f32(total);
}

Kernels kernels() {
  if (__builtin_cpu_supports("avx512f")) return {read_avx512, multiply_add_avx512, 16};
  return {read_avx2, multiply_add_avx2, 8};
}

// Work per second of all threads together: each runs `work(thread, chunk)` for a tenth of a second,
// `amount` a chunk, and counts its median chunk. A chunk is short against the time slices of the
// system's scheduler, so that other programs disturb few of them.
double rate(int threads, double amount, const std::function<double(int, int64_t)>& work) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kTime(100);
  std::vector<double> rates(threads), results(threads);
  const auto run = [&](int t) {
    std::vector<double> seconds;
    const auto start = Clock::now();
    auto last = start;
    for (int64_t chunk = 0; last - start < kTime || chunk < 3; ++chunk) {
      results[t] += work(t, chunk);
      const auto now = Clock::now();
      seconds.push_back(std::chrono::duration<double>(now - last).count());
      last = now;
    }
    rates[t] = amount / median(std::move(seconds));
  };
  {
    std::vector<std::jthread> helpers;  // joined even if the next one is refused
    for (int t = 1; t < threads; ++t) helpers.push_back(start_thread<std::jthread>(run, t));
    run(0);
  }
  return std::accumulate(rates.begin(), rates.end(), 0.0);
}

double measure_multiply_add(const Kernels& run, int threads) {
  constexpr int64_t kSteps = 50'000;
  return rate(threads, 2e-9 * kSteps * kChains * run.lanes,
              [&](int, int64_t) { return run.multiply_add(kSteps); });
}

// Every thread reads a slice of its own, piece by piece, again and again.
double measure_read(const Kernels& run, int threads, const float* data, double bytes) {
  constexpr size_t kPiece = 1 << 18;  // floats: 1 MiB
  const size_t slice = static_cast<size_t>(bytes / sizeof(float)) / threads / 64 * 64;
  const size_t piece = std::min(slice, kPiece), n_pieces = slice / piece;
  return rate(threads, 1e-9 * piece * sizeof(float), [&](int t, int64_t chunk) {
    return run.read(data + t * slice + chunk % n_pieces * piece, piece);
  });
}

std::string size_text(double bytes) {
  return bytes < kMiB ? fmt::format("{:.0f} KiB", bytes / kKiB)
                      : fmt::format("{:.0f} MiB", bytes / kMiB);
}

}  // namespace

double Roof::gb_per_s(double bytes) const {
  const auto above = std::find_if(memory.begin(), memory.end(),
                                  [&](const Bandwidth& point) { return point.bytes >= bytes; });
  if (above == memory.begin()) return memory.front().gb_per_s;
  if (above == memory.end()) return memory.back().gb_per_s;
  const Bandwidth& below = *std::prev(above);
  const double t = std::log(bytes / below.bytes) / std::log(above->bytes / below.bytes);
  return below.gb_per_s + t * (above->gb_per_s - below.gb_per_s);
}

double Roof::seconds(const OpCost& cost, double working_set) const {
  return 1e-9 * std::max(cost.bytes / gb_per_s(working_set), cost.flops / gflop_per_s);
}

std::string Roof::text() const {
  std::string text = fmt::format("{} threads; fp32 multiply-add {:.0f} GFLOP/s; memory read",
                                 threads, gflop_per_s);
  for (size_t i = 0; i < memory.size(); ++i)
    text += fmt::format("{} {:.1f} GB/s of {}", i ? "," : "", memory[i].gb_per_s,
                        size_text(memory[i].bytes));
  return text;
}

Roof measure_cpu_roof(int threads) {
  const Kernels run = kernels();
  const double free = static_cast<double>(::sysconf(_SC_AVPHYS_PAGES)) *
                      static_cast<double>(::sysconf(_SC_PAGESIZE));
  const double largest = std::max(64 * kMiB, std::min(1024 * kMiB, free / 4));
  const size_t count = static_cast<size_t>(largest / sizeof(float));
  const std::unique_ptr<float[]> data(new float[count]);
  std::fill_n(data.get(), count, 1.0f);

  Roof roof{.threads = threads};
  roof.gflop_per_s = measure_multiply_add(run, threads);
  for (const double bytes : {512 * kKiB, 4 * kMiB, 32 * kMiB, largest})
    roof.memory.push_back({bytes, measure_read(run, threads, data.get(), bytes)});
  return roof;
}

}  // namespace kdt::apps
