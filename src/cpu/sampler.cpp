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

// argmax of logit / T + Gumbel noise over ids offered in ascending order. Most tokens are dismissed
// by the bound without a logarithm; rounding is monotonic, so none is dismissed wrongly.
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
    if (value > best_) {
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

// fn(x, n, first, largest) for steps of at most 64 logits.
template <typename Fn>
void for_each_step(const float* logits, int32_t vocab, const Fn& fn) {
  constexpr int kStep = 64;
  for_each_block(logits, DType::kF32, vocab, [&](const float* x, int n, int32_t first) {
    for (int start = 0; start < n; start += kStep) {
      const int count = std::min(kStep, n - start);
      float largest;
      logit_kernels().scan(x + start, count, &largest);
      fn(x + start, count, first + start, largest);
    }
  });
}

// exp(logit / T - peak / T), the probability up to a factor.
class Weight {
 public:
  Weight(const SamplingParams& sampling, float max_logit)
      : temperature_(sampling.temperature), peak_(max_logit / temperature_) {}
  double operator()(float logit) const { return std::exp(logit / temperature_ - peak_); }
  double sum(const uint64_t* begin, const uint64_t* end) const {
    double total = 0.0;
    for (const uint64_t* key = begin; key < end; ++key) total += (*this)(key_logit(*key));
    return total;
  }

 private:
  const double temperature_, peak_;
};

// The k most probable tokens as sorted keys; returns how many there are.
size_t select_top(const float* logits, int32_t vocab, size_t k, uint64_t* keys) {
  const size_t n = static_cast<size_t>(vocab);
  TopSelect top(keys, std::min(n, std::max<size_t>(4 * k, 256)), std::min(n, k));
  for_each_step(logits, vocab, [&](const float* x, int count, int32_t first, float largest) {
    if (!(largest > top.threshold())) return;
    for (int i = 0; i < count; ++i) top.offer(x[i], first + i);
  });
  return top.finish();
}

// The key at which the weights of the sorted keys add up to `wanted`; null if all add up to less.
const uint64_t* crossing(const uint64_t* begin, const uint64_t* end, const Weight& weight,
                         double wanted) {
  for (const uint64_t* key = begin; key < end; ++key) {
    wanted -= weight(key_logit(*key));
    if (wanted <= 0.0) return key;
  }
  return nullptr;
}

// The same for unsorted keys, by bisection: linear time instead of a sort.
uint64_t crossing_unsorted(uint64_t* begin, uint64_t* end, const Weight& weight, double wanted) {
  while (end - begin > 64) {
    uint64_t* middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end);
    const double mass = weight.sum(begin, middle);
    if (mass >= wanted) {
      end = middle;
    } else {
      wanted -= mass;
      begin = middle;
    }
  }
  std::sort(begin, end);
  const uint64_t* key = crossing(begin, end, weight, wanted);
  return key ? *key : end[-1];
}

// The largest key that top-k and top-p keep.
uint64_t last_kept(const float* logits, int32_t vocab, const SamplingParams& sampling,
                   const Weight& weight, uint64_t* keys) {
  const bool limited = sampling.top_k > 0 && sampling.top_k < vocab;
  if (!limited && sampling.top_p == 1.0f) return std::numeric_limits<uint64_t>::max();
  constexpr size_t kUsual = 512;  // holds the nucleus unless the distribution is flat
  const size_t n = select_top(logits, vocab, limited ? sampling.top_k : kUsual, keys);
  if (sampling.top_p == 1.0f) return keys[n - 1];
  double total = 0.0;
  if (limited)
    total = weight.sum(keys, keys + n);
  else
    for (int32_t id = 0; id < vocab; ++id) total += weight(logits[id]);
  const double wanted = sampling.top_p * total;
  if (const uint64_t* key = crossing(keys, keys + n, weight, wanted)) return *key;
  if (limited || n < kUsual) return keys[n - 1];
  uint64_t* end = keys;
  for (int32_t id = 0; id < vocab; ++id)
    if (logits[id] > -std::numeric_limits<float>::infinity()) *end++ = logit_key(logits[id], id);
  return crossing_unsorted(keys, end, weight, wanted);
}

int32_t draw(const float* logits, int32_t vocab, const SamplingParams& sampling, int32_t position,
             float max_logit, uint64_t* scratch) {
  const Weight weight(sampling, max_logit);
  const uint64_t last = last_kept(logits, vocab, sampling, weight, scratch);
  const auto kept = [&](float logit, int32_t id) {
    return logit_key(logit, id) <= last &&
           (sampling.min_p == 0.0f || weight(logit) >= sampling.min_p);
  };
  GumbelMax noisy(sampling, position);
  for_each_step(logits, vocab, [&](const float* x, int count, int32_t first, float largest) {
    if (logit_key(largest, 0) > last || noisy.hopeless(largest)) return;
    for (int i = 0; i < count; i += 4) {
      const std::array<uint32_t, 4> lanes = noisy.lanes((first + i) / 4);
      for (int j = 0; j < 4; ++j) {
        if (noisy.can_win(x[i + j], lanes[j]) && kept(x[i + j], first + i + j))
          noisy.offer(x[i + j], first + i + j, lanes[j]);
      }
    }
  });
  return noisy.token();
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
  return draw(logits, vocab, sampling, position, max_logit, scratch);
}

}  // namespace kdt::cpu
