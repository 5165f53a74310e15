// Compiled once per ISA (see simd.h). Tiles keep keys and values in registers for several queries;
// they do not change the order of any sum.
#include "cpu/attention_block.h"

#include "cpu/simd.h"

namespace kdt::cpu::KDT_ISA {
namespace {

#ifdef __AVX512F__
constexpr int kQueryTile = 4, kKeyTile = 4, kValueTile = 4;
#else
constexpr int kQueryTile = 2, kKeyTile = 2, kValueTile = 2;
#endif

// The visible keys of a block, in position order.
struct Present {
  const float* key[kAttentionBlock];
  const float* value[kAttentionBlock];
  int position[kAttentionBlock];
  int n;
};

struct alignas(64) Weights {
  float p[kQueryTile][kAttentionBlock];  // scores, then exp(score - max)
  float decay[kQueryTile];               // exp(old max - new max)
};

template <int NQ, int NK>
KDT_INLINE void score_tile(const AttentionKeys& keys, const AttentionQuery* queries,
                           const Present& present, int first, Weights& w) {
  f32x16 acc[NQ][NK];
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NK; ++j) acc[i][j] = zero();
  for (int d = 0; d < keys.dim; d += kLanes) {
    f32x16 k[NK];
    for (int j = 0; j < NK; ++j) k[j] = load(present.key[first + j] + d);
    for (int i = 0; i < NQ; ++i) {
      const f32x16 q = load(queries[i].q + d);
      for (int j = 0; j < NK; ++j) acc[i][j] = fma(q, k[j], acc[i][j]);
    }
  }
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NK; ++j) w.p[i][present.position[first + j]] = keys.scale * sum(acc[i][j]);
}

// Scores become weights; the query's max and sum move on.
KDT_INLINE void softmax(AttentionQuery& query, float* p, float* decay) {
  const f32x16 lowest = broadcast(-3.40282347e38f), minus_inf = broadcast(-__builtin_inff());
  f32x16 largest = minus_inf, fault = zero();
  for (int i = 0; i < kAttentionBlock; i += kLanes) {
    largest = max(largest, load(p + i));
    fault = fma(max(lowest, load(p + i)), zero(), fault);  // NaN for NaN and +inf
  }
  const float block_max = max_lane(largest);
  float new_max = block_max > query.max ? block_max : query.max;
  if (sum(fault) != 0.0f || query.max != query.max) new_max = __builtin_nanf("");
  const bool nothing = new_max == -__builtin_inff();  // -inf - -inf would be NaN
  const f32x16 shift = broadcast(nothing ? 0.0f : new_max);
  f32x16 weight[kAttentionBlock / kLanes];
  for (int i = 0; i < kAttentionBlock / kLanes; ++i) {
    weight[i] = exp(sub(load(p + i * kLanes), shift));
    store(p + i * kLanes, weight[i]);
  }
  float first_lane[kLanes];
  store(first_lane, exp(sub(broadcast(query.max), shift)));
  *decay = first_lane[0];
  query.sum = query.sum * *decay + sum(add(add(weight[0], weight[1]), add(weight[2], weight[3])));
  query.max = new_max;
}

template <int NQ, int NV>
KDT_INLINE void value_tile(AttentionQuery* queries, const Present& present, const Weights& w,
                           int d) {
  f32x16 acc[NQ][NV];
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < NV; ++j) acc[i][j] = zero();
  for (int key = 0; key < present.n; ++key) {
    f32x16 v[NV];
    for (int j = 0; j < NV; ++j) v[j] = load(present.value[key] + d + j * kLanes);
    for (int i = 0; i < NQ; ++i) {
      const f32x16 p = broadcast(w.p[i][present.position[key]]);
      for (int j = 0; j < NV; ++j) acc[i][j] = fma(p, v[j], acc[i][j]);
    }
  }
  for (int i = 0; i < NQ; ++i) {
    const f32x16 decay = broadcast(w.decay[i]);
    for (int j = 0; j < NV; ++j) {
      float* out = queries[i].acc + d + j * kLanes;
      store(out, fma(load(out), decay, acc[i][j]));
    }
  }
}

template <int NQ>
void attend_tile(const AttentionKeys& keys, const Present& present, AttentionQuery* queries) {
  Weights w;
  for (int i = 0; i < NQ; ++i)
    for (int j = 0; j < kAttentionBlock; j += kLanes)
      store(w.p[i] + j, broadcast(-__builtin_inff()));
  int key = 0;
  for (; key + kKeyTile <= present.n; key += kKeyTile)
    score_tile<NQ, kKeyTile>(keys, queries, present, key, w);
  for (; key < present.n; ++key) score_tile<NQ, 1>(keys, queries, present, key, w);
  for (int i = 0; i < NQ; ++i) softmax(queries[i], w.p[i], &w.decay[i]);
  int d = 0;
  for (; d + kValueTile * kLanes <= keys.value_dim; d += kValueTile * kLanes)
    value_tile<NQ, kValueTile>(queries, present, w, d);
  for (; d < keys.value_dim; d += kLanes) value_tile<NQ, 1>(queries, present, w, d);
}

}  // namespace

void attend_block(const AttentionKeys& keys, AttentionQuery* queries, int n_queries) {
  Present present;
  present.n = 0;
  for (int position = 0; position < kAttentionBlock; ++position) {
    if (!keys.key[position]) continue;
    present.key[present.n] = keys.key[position];
    present.value[present.n] = keys.value[position];
    present.position[present.n++] = position;
  }
  if (present.n == 0) return;
  int i = 0;
  for (; i + kQueryTile <= n_queries; i += kQueryTile)
    attend_tile<kQueryTile>(keys, present, queries + i);
  if constexpr (kQueryTile > 2) {
    for (; i + 2 <= n_queries; i += 2) attend_tile<2>(keys, present, queries + i);
  }
  for (; i < n_queries; ++i) attend_tile<1>(keys, present, queries + i);
}

}  // namespace kdt::cpu::KDT_ISA
