// Draws the target token of one row of logits, as ops/tree_accept.h defines it, by a cluster of
// CTAs.
//
// Greedy: one pass. Sampled: the noisy logits of the kept tokens (draw_filter.cuh) are first
// estimated in fp32; only tokens whose estimate is within the estimate's error of the best are
// computed in float64, so the decision is that of the definition.
#pragma once

#include "cuda/device/philox.cuh"
#include "cuda/draw_filter.cuh"

namespace kdt::cuda {

constexpr float kEstimateSlack = 1e-4f;

// A token and what it is chosen by; the smallest order wins, then the smallest id.
struct Choice {
  uint64_t order = ~uint64_t{0};
  int id = -1;
};

struct DrawShared {
  device::RowShared row;
  FilterShared filter;
  Choice choices[device::kMaxRowWarps];      // first CTA
  uint32_t estimates[device::kMaxRowWarps];  // of the whole cluster, in every CTA
};

constexpr int kEarlyPieces = 5;
using EarlyPieces = device::PieceWords<float>[kEarlyPieces];

class DrawRow : KeptTokens {
 public:
  // list[kDrawList]: shared memory, `row`'s too.
  __device__ DrawRow(device::ClusterRow& row, int vocab, const SamplingParams& sampling,
                     int position, DrawShared& shared, uint64_t* list)
      : KeptTokens(row, vocab, sampling, shared.filter, list), position_(position), s_(shared) {}

  // The token, in thread 0 of the first CTA; -1 as in the contract. early: what row.load gave.
  __device__ int draw(const EarlyPieces& early) {
    if (sampling_.temperature == 0.0f) return greedy(early);
    row_.stage(early);
    return find_kept() ? noisy_argmax() : -1;
  }

 private:
  __device__ int greedy(const EarlyPieces& early) {
    row_.sync();  // every CTA runs: its shared memory may be written
    float best = -INFINITY;
    int id = -1;
    bool bad = false;
    row_.for_each_loaded(early, [&](const Piece& piece, int first) {
      const float most = device::largest_or_nan(piece);
      bad |= !(most < INFINITY);
      if (!(most > best)) return;
      best = most;
#pragma unroll
      for (int i = kPiece - 1; i >= 0; --i) id = piece.x[i] == most ? first + i : id;
    });
    Choice choice;
    if (best > -INFINITY) choice = {~device::ascending_key(best), id};
    if (bad) choice = {0, -1};
    return best_of_cluster(choice);
  }

  __device__ static Choice better(const Choice& a, const Choice& b) {
    return a.order < b.order || (a.order == b.order && a.id <= b.id) ? a : b;
  }

  __device__ static Choice best_of_warp(Choice choice) {
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) {
      const Choice other = {__shfl_xor_sync(device::kAllLanes, choice.order, step),
                            __shfl_xor_sync(device::kAllLanes, choice.id, step)};
      choice = better(choice, other);
    }
    return choice;
  }

  __device__ int best_of_cluster(Choice choice) {
    choice = best_of_warp(choice);
    if (row_.lane() == 0) *row_.in_first_cta(&s_.choices[row_.warp()]) = choice;
    row_.sync();
    if (!row_.is_first_cta() || threadIdx.x >= 32) return -1;
    Choice best;
    for (int i = row_.lane(); i < row_.n_warps(); i += 32) best = better(best, s_.choices[i]);
    return best_of_warp(best).id;
  }

  // fn(x, id, number) for the kept tokens of this lane that can reach the value `least()`.
  template <typename Least, typename Fn>
  __device__ void for_each_kept(const Least& least, const Fn& fn) const {
    const device::PhiloxKey key = {static_cast<uint32_t>(sampling_.seed),
                                   static_cast<uint32_t>(sampling_.seed >> 32)};
    row_.for_each([&](const Piece& piece, int first) {
      const float most = device::largest_or_nan(piece);
      if (most < least_logit()) return;
      if (scaled(most) + device::kLargestGumbel < least()) return;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint4 numbers = device::philox4x32(
            {static_cast<uint32_t>(position_), static_cast<uint32_t>(first / 4 + half), 0, 0}, key);
        const uint32_t lanes[4] = {numbers.x, numbers.y, numbers.z, numbers.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int id = first + 4 * half + i;
          if (is_kept(piece.x[4 * half + i], id)) fn(piece.x[4 * half + i], id, lanes[i]);
        }
      }
    });
  }

  __device__ Choice exact(float x, int id, uint32_t number) const {
    const double value = x / double{sampling_.temperature} + device::gumbel(number);
    return {~device::ascending_key(value), id};
  }

  __device__ int noisy_argmax() {
    // The peak itself reaches the least value.
    float best = -INFINITY;
    for_each_kept([&] { return fmaxf(best, device::kLeastGumbel) - kEstimateSlack; },
                  [&](float x, int, uint32_t number) {
                    best = fmaxf(best, scaled(x) + device::gumbel_estimate(number));
                  });
    const float floor = largest_estimate(best) - kEstimateSlack;
    Choice choice;
    // One of this lane's candidates at a time, of which there is seldom even one.
    for (int done = -1; best >= floor;) {
      float logit = 0.0f;
      int candidate = -1;
      uint32_t lot = 0;
      for_each_kept([&] { return floor; },
                    [&](float x, int id, uint32_t number) {
                      if (candidate >= 0 || id <= done) return;
                      if (scaled(x) + device::gumbel_estimate(number) < floor) return;
                      logit = x;
                      candidate = id;
                      lot = number;
                    });
      if (candidate < 0) break;
      choice = better(choice, exact(logit, candidate, lot));
      done = candidate;
    }
    return best_of_cluster(choice);
  }

  __device__ float largest_estimate(float best) {
    const uint32_t warp_best = __reduce_max_sync(device::kAllLanes, device::ascending_key(best));
    row_.store_to_all(&s_.estimates[row_.warp()], warp_best);
    row_.sync();
    uint32_t all = 0;
    for (int i = row_.lane(); i < row_.n_warps(); i += 32) all = max(all, s_.estimates[i]);
    return device::value_of_key(__reduce_max_sync(device::kAllLanes, all));
  }

  const int position_;
  DrawShared& s_;
};

}  // namespace kdt::cuda
