// Sixteen fp32 lanes: one __m512 or two __m256. Kernel sources are compiled once per ISA (see
// CMakeLists.txt) and everything here lives in a namespace named after it, so that the linker never
// merges code of one ISA into the other. Every function gives the same bits on both.
// Kernel sources include no standard header with inline functions, for the same reason.
#pragma once

#include <immintrin.h>
#include <stdint.h>

#ifdef __AVX512F__
#define KDT_ISA avx512
#else
#define KDT_ISA avx2
#endif
#define KDT_INLINE static inline __attribute__((always_inline))

namespace kdt::cpu::KDT_ISA {

inline constexpr int kLanes = 16;

// Starts loading a cache line; any address will do.
KDT_INLINE void prefetch(const void* p) {
  _mm_prefetch(static_cast<const char*>(p), _MM_HINT_T0);
}

#ifdef __AVX512F__

struct f32x16 {
  __m512 v;
};

KDT_INLINE f32x16 zero() {
  return {_mm512_setzero_ps()};
}
KDT_INLINE f32x16 broadcast(float x) {
  return {_mm512_set1_ps(x)};
}
KDT_INLINE f32x16 load(const float* p) {
  return {_mm512_loadu_ps(p)};
}
KDT_INLINE void store(float* p, f32x16 a) {
  _mm512_storeu_ps(p, a.v);
}

KDT_INLINE __mmask16 first_lanes(int n) {
  return static_cast<__mmask16>((1u << n) - 1u);
}
KDT_INLINE f32x16 load_first(const float* p, int n) {
  return {_mm512_maskz_loadu_ps(first_lanes(n), p)};
}
KDT_INLINE void store_first(float* p, f32x16 a, int n) {
  _mm512_mask_storeu_ps(p, first_lanes(n), a.v);
}

KDT_INLINE f32x16 add(f32x16 a, f32x16 b) {
  return {_mm512_add_ps(a.v, b.v)};
}
KDT_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  return {_mm512_sub_ps(a.v, b.v)};
}
KDT_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  return {_mm512_mul_ps(a.v, b.v)};
}
KDT_INLINE f32x16 div(f32x16 a, f32x16 b) {
  return {_mm512_div_ps(a.v, b.v)};
}
KDT_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return {_mm512_max_ps(a.v, b.v)};
}
KDT_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return {_mm512_min_ps(a.v, b.v)};
}
KDT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm512_fmadd_ps(a.v, b.v, c.v)};
}

KDT_INLINE f32x16 load_bf16(const uint16_t* p) {
  const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16))};
}
KDT_INLINE f32x16 load_f16(const uint16_t* p) {
  return {_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
}

// 2^(a / 2) and 2^(a - a / 2), halves rounded down, for the integer a in the low bits of `biased`.
KDT_INLINE void split_exponent(f32x16 biased, f32x16 bias, f32x16* low, f32x16* high) {
  const __m512i a = _mm512_sub_epi32(_mm512_castps_si512(biased.v), _mm512_castps_si512(bias.v));
  const __m512i half = _mm512_srai_epi32(a, 1), one = _mm512_set1_epi32(127);
  const __m512i rest = _mm512_sub_epi32(a, half);
  low->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(half, one), 23));
  high->v = _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_add_epi32(rest, one), 23));
}

KDT_INLINE __m256 low_half(f32x16 a) {
  return _mm512_castps512_ps256(a.v);
}
KDT_INLINE __m256 high_half(f32x16 a) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(a.v), 1));
}

#else

struct f32x16 {
  __m256 lo, hi;
};

KDT_INLINE f32x16 zero() {
  return {_mm256_setzero_ps(), _mm256_setzero_ps()};
}
KDT_INLINE f32x16 broadcast(float x) {
  const __m256 v = _mm256_set1_ps(x);
  return {v, v};
}
KDT_INLINE f32x16 load(const float* p) {
  return {_mm256_loadu_ps(p), _mm256_loadu_ps(p + 8)};
}
KDT_INLINE void store(float* p, f32x16 a) {
  _mm256_storeu_ps(p, a.lo);
  _mm256_storeu_ps(p + 8, a.hi);
}

// All ones in the first n lanes of each half.
KDT_INLINE void first_lanes(int n, __m256i* lo, __m256i* hi) {
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  *lo = _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
  *hi = _mm256_cmpgt_epi32(_mm256_set1_epi32(n - 8), lane);
}
KDT_INLINE f32x16 load_first(const float* p, int n) {
  __m256i lo, hi;
  first_lanes(n, &lo, &hi);
  return {_mm256_maskload_ps(p, lo), _mm256_maskload_ps(p + 8, hi)};
}
KDT_INLINE void store_first(float* p, f32x16 a, int n) {
  __m256i lo, hi;
  first_lanes(n, &lo, &hi);
  _mm256_maskstore_ps(p, lo, a.lo);
  _mm256_maskstore_ps(p + 8, hi, a.hi);
}

KDT_INLINE f32x16 add(f32x16 a, f32x16 b) {
  return {_mm256_add_ps(a.lo, b.lo), _mm256_add_ps(a.hi, b.hi)};
}
KDT_INLINE f32x16 sub(f32x16 a, f32x16 b) {
  return {_mm256_sub_ps(a.lo, b.lo), _mm256_sub_ps(a.hi, b.hi)};
}
KDT_INLINE f32x16 mul(f32x16 a, f32x16 b) {
  return {_mm256_mul_ps(a.lo, b.lo), _mm256_mul_ps(a.hi, b.hi)};
}
KDT_INLINE f32x16 div(f32x16 a, f32x16 b) {
  return {_mm256_div_ps(a.lo, b.lo), _mm256_div_ps(a.hi, b.hi)};
}
KDT_INLINE f32x16 max(f32x16 a, f32x16 b) {
  return {_mm256_max_ps(a.lo, b.lo), _mm256_max_ps(a.hi, b.hi)};
}
KDT_INLINE f32x16 min(f32x16 a, f32x16 b) {
  return {_mm256_min_ps(a.lo, b.lo), _mm256_min_ps(a.hi, b.hi)};
}
KDT_INLINE f32x16 fma(f32x16 a, f32x16 b, f32x16 c) {
  return {_mm256_fmadd_ps(a.lo, b.lo, c.lo), _mm256_fmadd_ps(a.hi, b.hi, c.hi)};
}

KDT_INLINE __m256 widen_bf16(__m128i bits) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(bits), 16));
}
KDT_INLINE f32x16 load_bf16(const uint16_t* p) {
  return {widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          widen_bf16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}
KDT_INLINE f32x16 load_f16(const uint16_t* p) {
  return {_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))),
          _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p + 8)))};
}

KDT_INLINE void split_exponent8(__m256 biased, __m256 bias, __m256* low, __m256* high) {
  const __m256i a = _mm256_sub_epi32(_mm256_castps_si256(biased), _mm256_castps_si256(bias));
  const __m256i half = _mm256_srai_epi32(a, 1), one = _mm256_set1_epi32(127);
  const __m256i rest = _mm256_sub_epi32(a, half);
  *low = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(half, one), 23));
  *high = _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_add_epi32(rest, one), 23));
}
// 2^(a / 2) and 2^(a - a / 2), halves rounded down, for the integer a in the low bits of `biased`.
KDT_INLINE void split_exponent(f32x16 biased, f32x16 bias, f32x16* low, f32x16* high) {
  split_exponent8(biased.lo, bias.lo, &low->lo, &high->lo);
  split_exponent8(biased.hi, bias.hi, &low->hi, &high->hi);
}

KDT_INLINE __m256 low_half(f32x16 a) {
  return a.lo;
}
KDT_INLINE __m256 high_half(f32x16 a) {
  return a.hi;
}

#endif

// Lane i + lane i + 8, then + 4, + 2, + 1: one order of additions everywhere.
KDT_INLINE float sum(f32x16 a) {
  const __m256 eight = _mm256_add_ps(low_half(a), high_half(a));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// Largest lane; lanes must not be NaN.
KDT_INLINE float max_lane(f32x16 a) {
  const __m256 eight = _mm256_max_ps(low_half(a), high_half(a));
  const __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_max_ss(two, _mm_shuffle_ps(two, two, 1)));
}

// e^x within 1 ulp: x = n ln 2 + r with |r| <= ln 2 / 2, Taylor polynomial of e^r, times 2^n in two
// exact halves so that results below 2^-126 round once. -inf gives 0, overflow inf, NaN stays NaN.
KDT_INLINE f32x16 exp(f32x16 x) {
  x = max(broadcast(-104.0f), min(broadcast(89.0f), x));  // NaN in the second operand passes
  const f32x16 shift = broadcast(0x1.8p23f);              // adding it rounds to an integer
  const f32x16 shifted = fma(x, broadcast(0x1.715476p0f), shift);
  const f32x16 n = sub(shifted, shift);
  f32x16 r = fma(n, broadcast(-0x1.62e4p-1f), x);  // ln 2 in two parts; the first has 15 bits
  r = fma(n, broadcast(-0x1.7f7d1cp-20f), r);
  f32x16 p = broadcast(1.0f / 5040);
  p = fma(p, r, broadcast(1.0f / 720));
  p = fma(p, r, broadcast(1.0f / 120));
  p = fma(p, r, broadcast(1.0f / 24));
  p = fma(p, r, broadcast(1.0f / 6));
  p = fma(p, r, broadcast(0.5f));
  p = fma(p, r, broadcast(1.0f));
  p = fma(p, r, broadcast(1.0f));
  f32x16 low, high;
  split_exponent(shifted, shift, &low, &high);
  return mul(mul(p, low), high);
}

}  // namespace kdt::cpu::KDT_ISA
