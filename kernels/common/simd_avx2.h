#pragma once
// Eight f32 lanes in one AVX2 register. Included by simd.h alone, which says what each name means.

#include <immintrin.h>

#include <cstdint>

#include "base/float8.h"

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

/// The same steps as to_f8 in base/float8.h: 8 codes, in the lower half.
template <class Format>
TRIREME_INLINE __m128i narrow_to_f8(__m256 x) {
  const auto all = [](std::uint32_t bits) { return _mm256_set1_epi32(static_cast<int>(bits)); };
  const __m256i bits = _mm256_castps_si256(x);
  const __m256i magnitude = _mm256_and_si256(bits, all(0x7fffffff));
  const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(magnitude, Format::kShift), all(1));
  const __m256i half = all((1U << (Format::kShift - 1)) - 1U);
  const __m256i rounded =
      _mm256_srli_epi32(_mm256_add_epi32(magnitude, _mm256_add_epi32(odd, half)), Format::kShift);
  const __m256i normal =
      _mm256_min_epi32(_mm256_sub_epi32(rounded, all(Format::kRebias)), all(Format::kLargest));
  const __m256 magic = _mm256_castsi256_ps(all(Format::kMagic));
  const __m256i small =
      _mm256_sub_epi32(_mm256_castps_si256(_mm256_add_ps(_mm256_castsi256_ps(magnitude), magic)),
                       all(Format::kMagic));
  const __m256i is_small = _mm256_cmpgt_epi32(all(Format::kMinNormal), magnitude);
  const __m256i sign = _mm256_and_si256(_mm256_srli_epi32(bits, 24), all(0x80));
  const __m256i code = _mm256_or_si256(_mm256_blendv_epi8(normal, small, is_small), sign);
  const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(x, x, _CMP_UNORD_Q));
  const __m256i words = _mm256_blendv_epi8(code, all(Format::kNan), is_nan);
  const __m128i halves =
      _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
  return _mm_packus_epi16(halves, halves);
}

/// Of 8 codes, by way of fp16: its upper byte is an e5m2, and an e4m3 with four bits of exponent is
/// 2^-8 of its value there, but for the NaN.
template <class Format>
TRIREME_INLINE __m256 widen_from_f8(__m128i codes) {
  const __m128i halves = _mm_cvtepu8_epi16(codes);
  if constexpr (Format::kFractionBits == 2) return _mm256_cvtph_ps(_mm_slli_epi16(halves, 8));
  const __m128i magnitude = _mm_and_si128(halves, _mm_set1_epi16(0x7f));
  const __m128i sign = _mm_slli_epi16(_mm_and_si128(halves, _mm_set1_epi16(0x80)), 8);
  const __m128i is_nan = _mm_cmpeq_epi16(magnitude, _mm_set1_epi16(0x7f));
  const __m128i nan = _mm_and_si128(is_nan, _mm_set1_epi16(0x7e00));
  const __m128i number = _mm_or_si128(_mm_slli_epi16(magnitude, 7), _mm_or_si128(sign, nan));
  return _mm256_mul_ps(_mm256_cvtph_ps(number), _mm256_set1_ps(256.0F));
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
  template <class F8, class Format = typename F8::Format>
  static TRIREME_INLINE F32 load(const F8* p, Full = {}) {
    return {widen_from_f8<Format>(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))};
  }
  template <class F8, class Format = typename F8::Format>
  static TRIREME_INLINE F32 load(const F8* p, Tail t) {
    alignas(16) std::uint8_t codes[16] = {};
    for (int i = 0; i < t.count; ++i) codes[i] = p[i].bits;
    return {widen_from_f8<Format>(_mm_load_si128(reinterpret_cast<const __m128i*>(codes)))};
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
  template <class F8, class Format = typename F8::Format>
  TRIREME_INLINE void store(F8* p, Full = {}) const {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(p), narrow_to_f8<Format>(v));
  }
  template <class F8, class Format = typename F8::Format>
  TRIREME_INLINE void store(F8* p, Tail t) const {
    alignas(16) std::uint8_t codes[16];
    _mm_store_si128(reinterpret_cast<__m128i*>(codes), narrow_to_f8<Format>(v));
    for (int i = 0; i < t.count; ++i) p[i].bits = codes[i];
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

TRIREME_INLINE F32 max_bits(F32 a, F32 b) {
  return {
      _mm256_castsi256_ps(_mm256_max_epi32(_mm256_castps_si256(a.v), _mm256_castps_si256(b.v)))};
}
TRIREME_INLINE std::int32_t reduce_max_bits(F32 a) {
  const __m256i x8 = _mm256_castps_si256(a.v);
  const __m128i x4 = _mm_max_epi32(_mm256_castsi256_si128(x8), _mm256_extracti128_si256(x8, 1));
  const __m128i x2 = _mm_max_epi32(x4, _mm_shuffle_epi32(x4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x2, _mm_shuffle_epi32(x2, 0xb1)));
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
/// The upper half of p[0], its lower half, ... in the lowest four bits of the lanes.
TRIREME_INLINE F32 half_bytes(const std::uint8_t* p, Full = {}) {
  int bytes;
  __builtin_memcpy(&bytes, p, sizeof bytes);
  const __m256i shifts = _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24);
  return {_mm256_castsi256_ps(_mm256_srlv_epi32(_mm256_set1_epi32(bytes), shifts))};
}
TRIREME_INLINE F32 half_bytes(const std::uint8_t* p, Tail t) {
  std::uint8_t bytes[4] = {};
  for (int i = 0; 2 * i < t.count; ++i) bytes[i] = p[i];
  return half_bytes(bytes);
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
