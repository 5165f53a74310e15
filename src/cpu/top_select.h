// Selection of the k largest logits, ties to the lower id, in one pass and bounded memory.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace kdt::cpu {

// A logit and its token id as one integer; ascending keys are logits descending, then ids
// ascending. The logit must not be NaN; -0 counts as +0.
inline uint64_t logit_key(float logit, int32_t id) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0f);
  const uint32_t descending = bits & 0x80000000u ? bits : 0x7fffffffu - bits;
  return uint64_t{descending} << 32 | static_cast<uint32_t>(id);
}

inline float key_logit(uint64_t key) {
  const uint32_t descending = static_cast<uint32_t>(key >> 32);
  return std::bit_cast<float>(descending & 0x80000000u ? descending : 0x7fffffffu - descending);
}

inline int32_t key_id(uint64_t key) {
  return static_cast<int32_t>(static_cast<uint32_t>(key));
}

// Logits are offered in ascending id order, so once k are held only larger ones can enter. The
// buffer fills past k and is cut back to the best k, which costs O(1) per offer on average. -inf
// never enters.
class TopSelect {
 public:
  // buffer[capacity], capacity >= 2 k or at least the number of offers.
  TopSelect(uint64_t* buffer, size_t capacity, size_t k)
      : buffer_(buffer), capacity_(capacity), k_(k) {}

  // Logits up to this value cannot enter any more.
  float threshold() const { return threshold_; }

  void offer(float logit, int32_t id) {
    if (!(logit > threshold_)) return;
    if (size_ == capacity_) cut();
    if (logit > threshold_) buffer_[size_++] = logit_key(logit, id);
  }

  // Sorts what is held; returns how many keys, at most k.
  size_t finish() {
    if (size_ > k_) cut();
    std::sort(buffer_, buffer_ + size_);
    return size_;
  }

 private:
  void cut() {
    std::nth_element(buffer_, buffer_ + k_ - 1, buffer_ + size_);
    size_ = k_;
    threshold_ = key_logit(buffer_[k_ - 1]);
  }

  uint64_t* const buffer_;
  const size_t capacity_;
  const size_t k_;
  size_t size_ = 0;
  float threshold_ = -std::numeric_limits<float>::infinity();
};

}  // namespace kdt::cpu
