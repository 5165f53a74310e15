// Random inputs and checked outputs of one benchmark case, in backend memory.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "ops/backend.h"
#include "ops/buffer.h"

namespace kdt::apps {

// Owns every array of a case. Values depend on the order of calls only, so that a case measures the
// same work every time. Pointers stay valid while it lives.
class CaseData {
 public:
  explicit CaseData(const Backend& backend) : backend_(backend) {}
  ~CaseData();
  CaseData(const CaseData&) = delete;
  CaseData& operator=(const CaseData&) = delete;

  const Backend& backend() const { return backend_; }

  // Uniform in (-scale, scale).
  float* uniform(size_t count, float scale = 1.0f);
  // Logits of a peaked distribution, Zipf with exponent 1.5: what a trained model's look like.
  std::vector<float> zipf_logits(size_t count);
  // `count` different numbers below `limit` for each of `rows`.
  int32_t* distinct_ids(size_t rows, int32_t count, int32_t limit);
  // G random matrices [out, in], packed.
  const LinearWeight* weight(WeightFormat format, int32_t groups, int64_t out, int64_t in);

  template <typename T>
  T* put(const std::vector<T>& host) {
    T* data = zeros<T>(host.size());
    backend_.copy_in(data, host.data(), host.size() * sizeof(T), {});
    return data;
  }
  template <typename T>
  T* zeros(size_t count) {
    buffers_.emplace_back(backend_, count * sizeof(T));
    return reinterpret_cast<T*>(buffers_.back().data());
  }
  template <typename T>
  std::vector<T> get(const T* data, size_t count) const {
    std::vector<T> host(count);
    backend_.copy_out(host.data(), data, count * sizeof(T), {});
    backend_.synchronize({});
    return host;
  }

  // An output that must hold finite numbers, not all zero, after the op ran.
  float* output(size_t count);
  // Any other condition on the outputs.
  void expect(std::function<bool()> holds) { expectations_.push_back(std::move(holds)); }
  bool outputs_sound() const;

  Workspace workspace(size_t bytes) { return {zeros<uint8_t>(bytes), bytes}; }
  // Requests of `rows` rows and `prefix` cached tokens each, their pages scattered.
  RowBatch row_batch(int32_t n_requests, int32_t rows, int32_t prefix);

  uint64_t random();

 private:
  float unit();  // [0, 1)

  const Backend& backend_;
  uint64_t state_ = 0x9e3779b97f4a7c15;
  std::vector<Buffer<uint8_t>> buffers_;
  std::vector<std::unique_ptr<LinearWeight>> weights_;
  std::vector<std::function<bool()>> expectations_;
};

}  // namespace kdt::apps
