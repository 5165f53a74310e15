// Sixteen weights of one k of a panel -> fp32 registers, by format.
#pragma once

#include "cpu/linear_kernel.h"
#include "cpu/simd.h"

namespace kdt::cpu::KDT_ISA {

KDT_INLINE constexpr bool has_scales(PanelFormat format) {
  return format == PanelFormat::kInt4 || format == PanelFormat::kFp8;
}
inline constexpr int kScaleBytes = kLanes * 4;

// Bytes of two k's: the unit in which codes are read.
KDT_INLINE constexpr int pair_bytes(PanelFormat format) {
  switch (format) {
    case PanelFormat::kF32:
      return 2 * kLanes * 4;
    case PanelFormat::kF16:
    case PanelFormat::kBF16:
      return 2 * kLanes * 2;
    case PanelFormat::kFp8:
      return 2 * kLanes;
    case PanelFormat::kInt4:
      return kLanes;
  }
  return 0;
}

KDT_INLINE __m128i load_bytes(const uint8_t* p) {
  return _mm_loadu_si128(reinterpret_cast<const __m128i*>(p));
}

// e4m3 bits moved to their places in f16: the value times 2^-8, subnormals included; the factor is
// in the scale. Codes are not NaN (pack_linear refuses them).
KDT_INLINE __m256i fp8_as_f16(const uint8_t* pair, int parity) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair));
  const __m256i sign_first = parity ? codes : _mm256_slli_epi16(codes, 8);
  return _mm256_and_si256(_mm256_srai_epi16(sign_first, 1),
                          _mm256_set1_epi16(static_cast<int16_t>(0xbf80)));
}

#ifdef __AVX512F__
KDT_INLINE f32x16 expand_fp8(const uint8_t* pair, int parity) {
  return {_mm512_cvtph_ps(fp8_as_f16(pair, parity))};
}
KDT_INLINE f32x16 expand_bf16(const uint8_t* pair, int parity) {
  const __m512i codes = _mm512_loadu_si512(pair);
  return {_mm512_castsi512_ps(parity ? _mm512_and_si512(codes, _mm512_set1_epi32(-65536))
                                     : _mm512_slli_epi32(codes, 16))};
}
KDT_INLINE f32x16 expand_int4(const uint8_t* p, int parity) {
  const __m512i bytes = _mm512_cvtepu8_epi32(load_bytes(p));
  const __m512 values = _mm512_setr_ps(-8, -7, -6, -5, -4, -3, -2, -1, 0, 1, 2, 3, 4, 5, 6, 7);
  return {_mm512_permutexvar_ps(parity ? _mm512_srli_epi32(bytes, 4) : bytes, values)};
}
#else
KDT_INLINE f32x16 expand_fp8(const uint8_t* pair, int parity) {
  const __m256i half = fp8_as_f16(pair, parity);
  return {_mm256_cvtph_ps(_mm256_castsi256_si128(half)),
          _mm256_cvtph_ps(_mm256_extracti128_si256(half, 1))};
}
KDT_INLINE __m256 expand_bf16x8(const uint8_t* pair, int parity) {
  const __m256i codes = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pair));
  return _mm256_castsi256_ps(parity ? _mm256_and_si256(codes, _mm256_set1_epi32(-65536))
                                    : _mm256_slli_epi32(codes, 16));
}
KDT_INLINE f32x16 expand_bf16(const uint8_t* pair, int parity) {
  return {expand_bf16x8(pair, parity), expand_bf16x8(pair + 32, parity)};
}
KDT_INLINE __m256 expand_nibbles(__m128i bytes) {
  return _mm256_cvtepi32_ps(_mm256_sub_epi32(_mm256_cvtepu8_epi32(bytes), _mm256_set1_epi32(8)));
}
KDT_INLINE f32x16 expand_int4(const uint8_t* p, int parity) {
  const __m128i bytes = load_bytes(p);
  const __m128i nibbles =
      _mm_and_si128(parity ? _mm_srli_epi16(bytes, 4) : bytes, _mm_set1_epi8(15));
  return {expand_nibbles(nibbles), expand_nibbles(_mm_srli_si128(nibbles, 8))};
}
#endif

// Weights of the first (parity 0) or second k of the pair at `codes`.
template <PanelFormat kFormat>
KDT_INLINE f32x16 expand(const uint8_t* codes, int parity, f32x16 scale) {
  if constexpr (kFormat == PanelFormat::kF32) {
    return load(reinterpret_cast<const float*>(codes) + parity * kLanes);
  } else if constexpr (kFormat == PanelFormat::kF16) {
    return load_f16(reinterpret_cast<const uint16_t*>(codes) + parity * kLanes);
  } else if constexpr (kFormat == PanelFormat::kBF16) {
    return expand_bf16(codes, parity);
  } else if constexpr (kFormat == PanelFormat::kInt4) {
    return mul(expand_int4(codes, parity), scale);
  } else {
    return mul(expand_fp8(codes, parity), scale);
  }
}

}  // namespace kdt::cpu::KDT_ISA
