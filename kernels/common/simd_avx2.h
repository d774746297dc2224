#pragma once
// Eight f32 lanes in one AVX2 register. Included by simd.h alone, which says what each name means.

#include <immintrin.h>

#include <cstdint>

#include "base/dtype.h"

#define TRIREME_INLINE __attribute__((always_inline)) inline

namespace trireme::TRIREME_ISA::v8 {

struct Full {};

struct Tail {
  __m256i words;
  int count;
  TRIREME_INLINE explicit Tail(std::int64_t n) : count(static_cast<int>(n < 8 ? n : 8)) {
    words = _mm256_cmpgt_epi32(_mm256_set1_epi32(count), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
  }
};

struct Mask {
  __m256 v;
};
TRIREME_INLINE Mask operator&(Mask a, Mask b) { return {_mm256_and_ps(a.v, b.v)}; }
TRIREME_INLINE Mask operator|(Mask a, Mask b) { return {_mm256_or_ps(a.v, b.v)}; }
TRIREME_INLINE bool any(Mask a) { return _mm256_movemask_ps(a.v) != 0; }

TRIREME_INLINE __m256 widen(__m128i halves) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(halves), 16));
}

/// The same integer steps as to_bfloat16 in base/dtype.h.
TRIREME_INLINE __m128i narrow(__m256 x) {
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i upper = _mm256_srli_epi32(bits, 16);
  const __m256i odd = _mm256_and_si256(upper, _mm256_set1_epi32(1));
  const __m256i rounded = _mm256_srli_epi32(
      _mm256_add_epi32(bits, _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff))), 16);
  const __m256i quiet = _mm256_or_si256(upper, _mm256_set1_epi32(0x40));
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(rounded, quiet, is_nan);
  return _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
}

struct F32 {
  static constexpr int kWidth = 8;
  __m256 v;

  static TRIREME_INLINE F32 zero() { return {_mm256_setzero_ps()}; }
  static TRIREME_INLINE F32 broadcast(float x) { return {_mm256_set1_ps(x)}; }
  static TRIREME_INLINE F32 iota() { return {_mm256_setr_ps(0, 1, 2, 3, 4, 5, 6, 7)}; }

  static TRIREME_INLINE F32 load(const float* p, Full = {}) { return {_mm256_loadu_ps(p)}; }
  static TRIREME_INLINE F32 load(const float* p, Tail t) {
    return {_mm256_maskload_ps(p, t.words)};
  }
  static TRIREME_INLINE F32 load(const BFloat16* p, Full = {}) {
    return {widen(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  static TRIREME_INLINE F32 load(const BFloat16* p, Tail t) {
    alignas(16) std::uint16_t halves[8] = {};
    for (int i = 0; i < t.count; ++i) halves[i] = p[i].bits;
    return {widen(_mm_load_si128(reinterpret_cast<const __m128i*>(halves)))};
  }

  TRIREME_INLINE void store(float* p, Full = {}) const { _mm256_storeu_ps(p, v); }
  TRIREME_INLINE void store(float* p, Tail t) const { _mm256_maskstore_ps(p, t.words, v); }
  TRIREME_INLINE void store(BFloat16* p, Full = {}) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), narrow(v));
  }
  TRIREME_INLINE void store(BFloat16* p, Tail t) const {
    alignas(16) std::uint16_t halves[8];
    _mm_store_si128(reinterpret_cast<__m128i*>(halves), narrow(v));
    for (int i = 0; i < t.count; ++i) p[i].bits = halves[i];
  }
};

TRIREME_INLINE F32 operator+(F32 a, F32 b) { return {_mm256_add_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator-(F32 a, F32 b) { return {_mm256_sub_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator*(F32 a, F32 b) { return {_mm256_mul_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator/(F32 a, F32 b) { return {_mm256_div_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator-(F32 a) { return {_mm256_xor_ps(a.v, _mm256_set1_ps(-0.0F))}; }
TRIREME_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm256_fmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE F32 fnma(F32 a, F32 b, F32 c) { return {_mm256_fnmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE F32 min(F32 a, F32 b) { return {_mm256_min_ps(a.v, b.v)}; }
TRIREME_INLINE F32 max(F32 a, F32 b) { return {_mm256_max_ps(a.v, b.v)}; }
TRIREME_INLINE F32 sqrt(F32 a) { return {_mm256_sqrt_ps(a.v)}; }
TRIREME_INLINE F32 abs(F32 a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0F), a.v)}; }
TRIREME_INLINE F32 round(F32 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TRIREME_INLINE F32 floor(F32 a) {
  return {_mm256_round_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}

TRIREME_INLINE Mask operator<(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LT_OQ)}; }
TRIREME_INLINE Mask operator<=(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_LE_OQ)}; }
TRIREME_INLINE Mask operator==(F32 a, F32 b) { return {_mm256_cmp_ps(a.v, b.v, _CMP_EQ_OQ)}; }
TRIREME_INLINE Mask is_nan(F32 a) { return {_mm256_cmp_ps(a.v, a.v, _CMP_UNORD_Q)}; }
TRIREME_INLINE F32 select(Mask m, F32 yes, F32 no) { return {_mm256_blendv_ps(no.v, yes.v, m.v)}; }
TRIREME_INLINE F32 select(Full, F32 yes, F32) { return yes; }
TRIREME_INLINE F32 select(Tail t, F32 yes, F32 no) {
  return {_mm256_blendv_ps(no.v, yes.v, _mm256_castsi256_ps(t.words))};
}

TRIREME_INLINE float reduce_add(F32 a) {
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
TRIREME_INLINE float reduce_max(F32 a) {
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(a.v), _mm256_extractf128_ps(a.v, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}

TRIREME_INLINE F32 rounded_to_bf16(F32 a) { return {widen(narrow(a.v))}; }
TRIREME_INLINE F32 pow2(F32 n) {
  const __m256i biased = _mm256_add_epi32(_mm256_cvtps_epi32(n.v), _mm256_set1_epi32(127));
  return {_mm256_castsi256_ps(_mm256_slli_epi32(biased, 23))};
}
TRIREME_INLINE F32 exponent_of(F32 a) {
  const __m256i biased = _mm256_srli_epi32(_mm256_castps_si256(a.v), 23);
  return {_mm256_cvtepi32_ps(_mm256_sub_epi32(biased, _mm256_set1_epi32(127)))};
}
TRIREME_INLINE F32 mantissa_of(F32 a) {
  const __m256i fraction =
      _mm256_and_si256(_mm256_castps_si256(a.v), _mm256_set1_epi32(0x007fffff));
  return {_mm256_castsi256_ps(_mm256_or_si256(fraction, _mm256_set1_epi32(0x3f800000)))};
}

/// x * 2^floor(n), rounded once.
TRIREME_INLINE F32 scale_by_pow2(F32 x, F32 n) {
  n = floor(n);
  const F32 half = floor(n * F32::broadcast(0.5F));
  return x * pow2(half) * pow2(n - half);
}
/// table[i] where i are the lowest four bits of each lane.
TRIREME_INLINE F32 look_up(const float* table, F32 bits) {
  const __m256i index = _mm256_castps_si256(bits.v);
  const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), index),
               high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), index);
  return {_mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)))};
}

/// x[i] becomes column i.
TRIREME_INLINE void transpose(F32 (&x)[8]) {
  __m256 pairs[8], fours[8];
#pragma GCC unroll 4
  for (int i = 0; i < 8; i += 2) {
    pairs[i] = _mm256_unpacklo_ps(x[i].v, x[i + 1].v);
    pairs[i + 1] = _mm256_unpackhi_ps(x[i].v, x[i + 1].v);
  }
#pragma GCC unroll 2
  for (int i = 0; i < 8; i += 4) {
    fours[i] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm256_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm256_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    x[i].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x20);
    x[i + 4].v = _mm256_permute2f128_ps(fours[i], fours[i + 4], 0x31);
  }
}

struct F64 {
  static constexpr int kWidth = 4;
  __m256d v;

  static TRIREME_INLINE F64 zero() { return {_mm256_setzero_pd()}; }
  static TRIREME_INLINE F64 broadcast(double x) { return {_mm256_set1_pd(x)}; }
  static TRIREME_INLINE F64 load(const float* p) { return {_mm256_cvtps_pd(_mm_loadu_ps(p))}; }
  static TRIREME_INLINE F64 load(const double* p) { return {_mm256_loadu_pd(p)}; }
  TRIREME_INLINE void store(double* p) const { _mm256_storeu_pd(p, v); }
};
TRIREME_INLINE F64 operator+(F64 a, F64 b) { return {_mm256_add_pd(a.v, b.v)}; }
TRIREME_INLINE F64 operator-(F64 a, F64 b) { return {_mm256_sub_pd(a.v, b.v)}; }
TRIREME_INLINE F64 operator*(F64 a, F64 b) { return {_mm256_mul_pd(a.v, b.v)}; }
TRIREME_INLINE F64 fma(F64 a, F64 b, F64 c) { return {_mm256_fmadd_pd(a.v, b.v, c.v)}; }

}  // namespace trireme::TRIREME_ISA::v8
