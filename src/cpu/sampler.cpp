#include "cpu/sampler.h"

#include <bit>
#include <cmath>
#include <limits>

#include "cpu/logit_kernels.h"
#include "cpu/philox.h"
#include "cpu/top_select.h"

namespace kdt::cpu {
namespace {

constexpr double kLn2 = 0.69314718055994531;

// Above every value of -log(-log u): with y = 1 - u, -log u >= y, so it is at most -log y, and
// y = (~x + 0.5) 2^-32 >= 2^(bit_width(~x) - 33). The slack covers the rounding of the logarithms.
double gumbel_bound(uint32_t x) {
  return (33 - static_cast<int>(std::bit_width(~x))) * kLn2 + 1e-6;
}
constexpr double kLargestGumbel = 33 * kLn2 + 1e-6;

// argmax of logit / T + Gumbel noise, ties to the lower id. Most tokens are dismissed by the bound
// without a logarithm; rounding is monotonic, so none is dismissed wrongly.
class GumbelMax {
 public:
  GumbelMax(const SamplingParams& sampling, int32_t position)
      : temperature_(sampling.temperature),
        key_{static_cast<uint32_t>(sampling.seed), static_cast<uint32_t>(sampling.seed >> 32)},
        position_(static_cast<uint32_t>(position)) {}

  double scaled(float logit) const { return logit / temperature_; }
  bool hopeless(float logit) const { return scaled(logit) + kLargestGumbel < best_; }
  int32_t token() const { return token_; }

  // The random numbers of ids 4 * group .. 4 * group + 3.
  std::array<uint32_t, 4> lanes(int32_t group) const {
    return philox4x32({position_, static_cast<uint32_t>(group), 0, 0}, key_);
  }

  bool can_win(float logit, uint32_t x) const { return !(scaled(logit) + gumbel_bound(x) < best_); }

  void offer(float logit, int32_t id, uint32_t x) {
    const double u = (x + 0.5) * 0x1p-32;
    const double value = scaled(logit) - std::log(-std::log(u));
    if (value > best_ || (value == best_ && id < token_)) {
      best_ = value;
      token_ = id;
    }
  }

 private:
  const double temperature_;
  const std::array<uint32_t, 2> key_;
  const uint32_t position_;
  double best_ = -std::numeric_limits<double>::infinity();
  int32_t token_ = -1;
};

// Every token with p >= min_p * max p (min_p 0: every token), in id order.
int32_t draw_from_all(const float* logits, int32_t vocab, const SamplingParams& sampling,
                      int32_t position, float max_logit) {
  GumbelMax draw(sampling, position);
  const double peak = draw.scaled(max_logit);
  const auto kept = [&](float logit) {
    return sampling.min_p == 0.0f || std::exp(draw.scaled(logit) - peak) >= sampling.min_p;
  };
  constexpr int kStep = 64;
  for_each_block(logits, DType::kF32, vocab, [&](const float* x, int n, int32_t first) {
    for (int start = 0; start < n; start += kStep) {
      const int end = std::min(start + kStep, n);
      float largest;
      logit_kernels().scan(x + start, end - start, &largest);
      if (draw.hopeless(largest)) continue;
      for (int i = start; i < end; i += 4) {
        const std::array<uint32_t, 4> lanes = draw.lanes((first + i) / 4);
        for (int j = 0; j < 4; ++j) {
          if (draw.can_win(x[i + j], lanes[j]) && kept(x[i + j]))
            draw.offer(x[i + j], first + i + j, lanes[j]);
        }
      }
    }
  });
  return draw.token();
}

// The k most probable tokens as sorted keys in scratch[vocab]; returns how many.
size_t select(const float* logits, int32_t vocab, size_t k, uint64_t* scratch) {
  const size_t n = static_cast<size_t>(vocab);
  TopSelect top(scratch, std::min(n, std::max<size_t>(4 * k, 256)), std::min(n, k));
  constexpr int kStep = 64;
  for_each_block(logits, DType::kF32, vocab, [&](const float* x, int n_block, int32_t first) {
    for (int start = 0; start < n_block; start += kStep) {
      const int end = std::min(start + kStep, n_block);
      float largest;
      logit_kernels().scan(x + start, end - start, &largest);
      if (!(largest > top.threshold())) continue;
      for (int i = start; i < end; ++i) top.offer(x[i], first + i);
    }
  });
  return top.finish();
}

// How many of the sorted keys hold top_p of the probability; n + 1 if all n hold less.
size_t nucleus(const uint64_t* keys, size_t n, const SamplingParams& sampling, double total) {
  const double temperature = sampling.temperature;
  const double peak = key_logit(keys[0]) / temperature, wanted = sampling.top_p * total;
  double sum = 0.0;
  for (size_t i = 0; i < n; ++i) {
    sum += std::exp(key_logit(keys[i]) / temperature - peak);
    if (sum >= wanted) return i + 1;
  }
  return n + 1;
}

// Sorted keys of the tokens that top-k and top-p keep; returns how many, at least 1.
size_t select_kept(const float* logits, int32_t vocab, const SamplingParams& sampling,
                   float max_logit, uint64_t* keys) {
  const double temperature = sampling.temperature, peak = max_logit / temperature;
  const bool limited = sampling.top_k > 0 && sampling.top_k < vocab;
  size_t k = limited ? sampling.top_k : 64, n = 0;
  double total = 0.0;
  if (limited) {
    n = select(logits, vocab, k, keys);
    if (sampling.top_p == 1.0f) return n;
    for (size_t i = 0; i < n; ++i) total += std::exp(key_logit(keys[i]) / temperature - peak);
    return std::min(n, nucleus(keys, n, sampling, total));
  }
  for (int32_t id = 0; id < vocab; ++id) total += std::exp(logits[id] / temperature - peak);
  for (;; k *= 8) {
    n = select(logits, vocab, k, keys);
    const size_t n_kept = nucleus(keys, n, sampling, total);
    if (n_kept <= n || n < k) return std::min(n, n_kept);
  }
}

int32_t draw_from_kept(const uint64_t* keys, size_t n, const SamplingParams& sampling,
                       int32_t position) {
  GumbelMax draw(sampling, position);
  const double peak = draw.scaled(key_logit(keys[0]));
  for (size_t i = 0; i < n; ++i) {
    const float logit = key_logit(keys[i]);
    if (draw.hopeless(logit)) break;
    if (sampling.min_p > 0.0f && std::exp(draw.scaled(logit) - peak) < sampling.min_p) break;
    const int32_t id = key_id(keys[i]);
    draw.offer(logit, id, draw.lanes(id / 4)[id % 4]);
  }
  return draw.token();
}

int32_t first_of(const float* logits, int32_t vocab, float value) {
  int32_t id = 0;
  while (id < vocab - 1 && logits[id] != value) ++id;
  return id;
}

}  // namespace

int32_t draw_token(const float* logits, int32_t vocab, const SamplingParams& sampling,
                   int32_t position, uint64_t* scratch) {
  constexpr float kInf = std::numeric_limits<float>::infinity();
  float max_logit = -kInf;
  bool valid = true;
  for_each_block(logits, DType::kF32, vocab, [&](const float* x, int n, int32_t) {
    float largest;
    valid &= logit_kernels().scan(x, n, &largest);
    max_logit = std::max(max_logit, largest);
  });
  if (!valid || max_logit == -kInf) return -1;
  if (sampling.temperature == 0.0f) return first_of(logits, vocab, max_logit);
  const bool filtered = sampling.top_p < 1.0f || (sampling.top_k > 0 && sampling.top_k < vocab);
  if (!filtered) return draw_from_all(logits, vocab, sampling, position, max_logit);
  const size_t n = select_kept(logits, vocab, sampling, max_logit, scratch);
  return draw_from_kept(scratch, n, sampling, position);
}

}  // namespace kdt::cpu
