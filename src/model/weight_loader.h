// From checkpoint tensors to backend weights: the one bridge between src/checkpoint and the ops.
#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "checkpoint/config.h"
#include "checkpoint/expected_weights.h"
#include "checkpoint/linear_source.h"
#include "ops/backend.h"
#include "ops/buffer.h"

namespace kdt::model {

// Called as weights are packed: bytes done, bytes in all.
using LoadProgress = std::function<void(size_t done, size_t total)>;

// A LinearWeight that frees itself.
class Linear {
 public:
  Linear() = default;
  Linear(const Backend& backend, LinearWeight weight) : backend_(&backend), weight_(weight) {}
  ~Linear() {
    if (weight_.data) backend_->deallocate(weight_.data, weight_.bytes);
  }
  Linear(Linear&& other) noexcept { swap(other); }
  Linear& operator=(Linear&& other) noexcept {
    swap(other);
    return *this;
  }
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  const LinearWeight* get() const { return &weight_; }

 private:
  void swap(Linear& other) {
    std::swap(backend_, other.backend_);
    std::swap(weight_, other.weight_);
  }

  const Backend* backend_ = nullptr;
  LinearWeight weight_;
};

// Loads one model's tensors; drops the mapped pages of each once it is packed, so that a weight is
// resident once. Not thread-safe.
class WeightLoader {
 public:
  using Weight = checkpoint::ExpectedWeight;

  WeightLoader(const Backend& backend, const checkpoint::Checkpoint& checkpoint,
               const checkpoint::QuantizationConfig& quantization, LoadProgress progress);

  // A weight that the model does not have gives nothing. Throws what checkpoint::load_linear
  // throws; non-finite weights throw kBadFile naming the tensor.
  Linear linear(const Weight& weight);
  // One LinearWeight of many modules of one shape: the experts of a layer.
  Linear grouped(std::span<const Weight> weights);
  // kv_b_proj [heads * (nope + v), latent], split for absorbed attention: w_uk maps q_nope to the
  // latent (per head [latent, nope]), w_uv maps the latent to v (per head [v, latent]).
  void kv_b(const Weight& weight, const checkpoint::TargetConfig& config, Linear* w_uk,
            Linear* w_uv);
  // A vector as fp32.
  Buffer<float> vector(const Weight& weight);
  // A dense matrix in its own type, row major: the embedding table.
  Buffer<uint8_t> table(const Weight& weight, DType* dtype);
  // Reports the end, whatever the model did not ask for (vision towers, MTP layers).
  void finish();

 private:
  // Refuse NaN and infinities.
  checkpoint::LinearSource load(const Weight& weight);
  const checkpoint::TensorView& get(const Weight& weight);
  Linear pack(std::span<const LinearSource> groups);
  // Counts the tensor as loaded and drops its pages.
  void done(const checkpoint::TensorView& tensor);
  void done(const checkpoint::LinearSource& source);

  const Backend& backend_;
  const checkpoint::Checkpoint& checkpoint_;
  const checkpoint::QuantizationConfig& quantization_;
  LoadProgress progress_;
  size_t bytes_done_ = 0;
  size_t bytes_total_ = 0;
};

}  // namespace kdt::model
