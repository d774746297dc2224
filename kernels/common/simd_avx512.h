#pragma once
// Sixteen f32 lanes in an AVX-512 register (F, BW, DQ, VL). Only for simd.h, which has the names.

#include <immintrin.h>

#include <cstdint>

#include "base/float8.h"

#define TRIREME_INLINE __attribute__((always_inline)) inline

namespace trireme::TRIREME_ISA::v16 {

struct Full {};

struct Tail {
  __mmask16 lanes;
  TRIREME_INLINE explicit Tail(std::int64_t n)
      : lanes(static_cast<__mmask16>(n >= 16 ? 0xffffU : (1U << n) - 1U)) {}
};

struct Mask {
  __mmask16 v;
};
TRIREME_INLINE Mask operator&(Mask a, Mask b) { return {static_cast<__mmask16>(a.v & b.v)}; }
TRIREME_INLINE Mask operator|(Mask a, Mask b) { return {static_cast<__mmask16>(a.v | b.v)}; }
TRIREME_INLINE bool any(Mask a) { return a.v != 0; }

TRIREME_INLINE __m512 widen(__m256i halves) {
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}

/// As to_bfloat16 in base/dtype.h, which AVX512_BF16 does in one instruction, but that subnormal
/// numbers become 0 (its products take them for 0 anyway).
TRIREME_INLINE __m256i narrow(__m512 x) {
#ifdef __AVX512BF16__
  return (__m256i)_mm512_cvtneps_pbh(x);
#else
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i upper = _mm512_srli_epi32(bits, 16);
  const __m512i odd = _mm512_and_si512(upper, _mm512_set1_epi32(1));
  const __m512i rounded = _mm512_srli_epi32(
      _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff))), 16);
  const __m512i quiet = _mm512_or_si512(upper, _mm512_set1_epi32(0x40));
  const __mmask16 is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  return _mm512_cvtepi32_epi16(_mm512_mask_blend_epi32(is_nan, rounded, quiet));
#endif
}

/// The same steps as to_f8 in base/float8.h, as 16 words.
template <class Format>
TRIREME_INLINE __m512i narrow_to_f8(__m512 x) {
  const auto all = [](std::uint32_t bits) { return _mm512_set1_epi32(static_cast<int>(bits)); };
  const __m512i bits = _mm512_castps_si512(x);
  const __m512i magnitude = _mm512_and_si512(bits, all(0x7fffffff));
  const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(magnitude, Format::kShift), all(1));
  const __m512i half = all((1U << (Format::kShift - 1)) - 1U);
  const __m512i rounded =
      _mm512_srli_epi32(_mm512_add_epi32(magnitude, _mm512_add_epi32(odd, half)), Format::kShift);
  const __m512i normal =
      _mm512_min_epi32(_mm512_sub_epi32(rounded, all(Format::kRebias)), all(Format::kLargest));
  const __m512 magic = _mm512_castsi512_ps(all(Format::kMagic));
  const __m512i small = _mm512_castps_si512(_mm512_add_ps(_mm512_castsi512_ps(magnitude), magic));
  const __mmask16 is_small = _mm512_cmplt_epi32_mask(magnitude, all(Format::kMinNormal)),
                  is_nan = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
  const __m512i code = _mm512_mask_sub_epi32(normal, is_small, small, all(Format::kMagic));
  // 0x80 of the sign, else the code.
  const __m512i with_sign = _mm512_ternarylogic_epi32(_mm512_srli_epi32(bits, 24), all(0x80), code,
                                                      0xea);  // (a & b) | c
  return _mm512_mask_mov_epi32(with_sign, is_nan, all(Format::kNan));
}

/// Of 16 codes, by way of fp16: its upper byte is an e5m2, and an e4m3 with four bits of exponent
/// is 2^-8 of its value there, but for the NaN.
template <class Format>
TRIREME_INLINE __m512 widen_from_f8(__m128i codes) {
  const __m256i halves = _mm256_cvtepu8_epi16(codes);
  if constexpr (Format::kFractionBits == 2) return _mm512_cvtph_ps(_mm256_slli_epi16(halves, 8));
  const __m256i magnitude = _mm256_and_si256(halves, _mm256_set1_epi16(0x7f));
  const __m256i sign = _mm256_slli_epi16(_mm256_and_si256(halves, _mm256_set1_epi16(0x80)), 8);
  const __m256i number = _mm256_or_si256(_mm256_slli_epi16(magnitude, 7), sign);
  const __mmask16 is_nan = _mm256_cmpeq_epi16_mask(magnitude, _mm256_set1_epi16(0x7f));
  const __m256i nan = _mm256_or_si256(sign, _mm256_set1_epi16(0x7e00));
  return _mm512_mul_ps(_mm512_cvtph_ps(_mm256_mask_mov_epi16(number, is_nan, nan)),
                       _mm512_set1_ps(256.0F));
}

struct F32 {
  static constexpr int kWidth = 16;
  __m512 v;

  static TRIREME_INLINE F32 zero() { return {_mm512_setzero_ps()}; }
  static TRIREME_INLINE F32 broadcast(float x) { return {_mm512_set1_ps(x)}; }
  static TRIREME_INLINE F32 iota() {
    return {_mm512_setr_ps(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)};
  }

  static TRIREME_INLINE F32 load(const float* p, Full = {}) { return {_mm512_loadu_ps(p)}; }
  static TRIREME_INLINE F32 load(const float* p, Tail t) {
    return {_mm512_maskz_loadu_ps(t.lanes, p)};
  }
  static TRIREME_INLINE F32 load(const BFloat16* p, Full = {}) {
    return {widen(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)))};
  }
  static TRIREME_INLINE F32 load(const BFloat16* p, Tail t) {
    return {widen(_mm256_maskz_loadu_epi16(t.lanes, p))};
  }
  template <class F8, class Format = typename F8::Format>
  static TRIREME_INLINE F32 load(const F8* p, Full = {}) {
    return {widen_from_f8<Format>(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))};
  }
  template <class F8, class Format = typename F8::Format>
  static TRIREME_INLINE F32 load(const F8* p, Tail t) {
    return {widen_from_f8<Format>(_mm_maskz_loadu_epi8(t.lanes, p))};
  }

  TRIREME_INLINE void store(float* p, Full = {}) const { _mm512_storeu_ps(p, v); }
  TRIREME_INLINE void store(float* p, Tail t) const { _mm512_mask_storeu_ps(p, t.lanes, v); }
  TRIREME_INLINE void store(BFloat16* p, Full = {}) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), narrow(v));
  }
  TRIREME_INLINE void store(BFloat16* p, Tail t) const {
    _mm256_mask_storeu_epi16(p, t.lanes, narrow(v));
  }
  template <class F8, class Format = typename F8::Format>
  TRIREME_INLINE void store(F8* p, Full = {}) const {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8(narrow_to_f8<Format>(v)));
  }
  template <class F8, class Format = typename F8::Format>
  TRIREME_INLINE void store(F8* p, Tail t) const {
    _mm512_mask_cvtepi32_storeu_epi8(p, t.lanes, narrow_to_f8<Format>(v));
  }
};

TRIREME_INLINE F32 operator+(F32 a, F32 b) { return {_mm512_add_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator-(F32 a, F32 b) { return {_mm512_sub_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator*(F32 a, F32 b) { return {_mm512_mul_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator/(F32 a, F32 b) { return {_mm512_div_ps(a.v, b.v)}; }
TRIREME_INLINE F32 operator-(F32 a) { return {_mm512_xor_ps(a.v, _mm512_set1_ps(-0.0F))}; }
TRIREME_INLINE F32 fma(F32 a, F32 b, F32 c) { return {_mm512_fmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE F32 fnma(F32 a, F32 b, F32 c) { return {_mm512_fnmadd_ps(a.v, b.v, c.v)}; }
TRIREME_INLINE F32 min(F32 a, F32 b) { return {_mm512_min_ps(a.v, b.v)}; }
TRIREME_INLINE F32 max(F32 a, F32 b) { return {_mm512_max_ps(a.v, b.v)}; }
TRIREME_INLINE F32 sqrt(F32 a) { return {_mm512_sqrt_ps(a.v)}; }
TRIREME_INLINE F32 abs(F32 a) { return {_mm512_andnot_ps(_mm512_set1_ps(-0.0F), a.v)}; }
TRIREME_INLINE F32 round(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)};
}
TRIREME_INLINE F32 floor(F32 a) {
  return {_mm512_roundscale_ps(a.v, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
}

TRIREME_INLINE Mask operator<(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LT_OQ)}; }
TRIREME_INLINE Mask operator<=(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_LE_OQ)}; }
TRIREME_INLINE Mask operator==(F32 a, F32 b) { return {_mm512_cmp_ps_mask(a.v, b.v, _CMP_EQ_OQ)}; }
TRIREME_INLINE Mask is_nan(F32 a) { return {_mm512_cmp_ps_mask(a.v, a.v, _CMP_UNORD_Q)}; }
TRIREME_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {_mm512_mask_blend_ps(m.v, no.v, yes.v)};
}
TRIREME_INLINE F32 select(Full, F32 yes, F32) { return yes; }
TRIREME_INLINE F32 select(Tail t, F32 yes, F32 no) {
  return {_mm512_mask_blend_ps(t.lanes, no.v, yes.v)};
}

TRIREME_INLINE float reduce_add(F32 a) {
  const __m256 x8 = _mm256_add_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x4 = _mm_add_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_add_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_add_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}
TRIREME_INLINE float reduce_max(F32 a) {
  const __m256 x8 = _mm256_max_ps(_mm512_castps512_ps256(a.v), _mm512_extractf32x8_ps(a.v, 1));
  const __m128 x4 = _mm_max_ps(_mm256_castps256_ps128(x8), _mm256_extractf128_ps(x8, 1));
  const __m128 x2 = _mm_max_ps(x4, _mm_movehl_ps(x4, x4));
  return _mm_cvtss_f32(_mm_max_ss(x2, _mm_shuffle_ps(x2, x2, 1)));
}

TRIREME_INLINE F32 max_bits(F32 a, F32 b) {
  return {
      _mm512_castsi512_ps(_mm512_max_epi32(_mm512_castps_si512(a.v), _mm512_castps_si512(b.v)))};
}
TRIREME_INLINE std::int32_t reduce_max_bits(F32 a) {
  const __m512i x16 = _mm512_castps_si512(a.v);
  const __m256i x8 =
      _mm256_max_epi32(_mm512_castsi512_si256(x16), _mm512_extracti32x8_epi32(x16, 1));
  const __m128i x4 = _mm_max_epi32(_mm256_castsi256_si128(x8), _mm256_extracti128_si256(x8, 1));
  const __m128i x2 = _mm_max_epi32(x4, _mm_shuffle_epi32(x4, 0x4e));
  return _mm_cvtsi128_si32(_mm_max_epi32(x2, _mm_shuffle_epi32(x2, 0xb1)));
}

TRIREME_INLINE F32 rounded_to_bf16(F32 a) { return {widen(narrow(a.v))}; }
TRIREME_INLINE F32 pow2(F32 n) {
  const __m512i biased = _mm512_add_epi32(_mm512_cvtps_epi32(n.v), _mm512_set1_epi32(127));
  return {_mm512_castsi512_ps(_mm512_slli_epi32(biased, 23))};
}
TRIREME_INLINE F32 exponent_of(F32 a) {
  const __m512i biased = _mm512_srli_epi32(_mm512_castps_si512(a.v), 23);
  return {_mm512_cvtepi32_ps(_mm512_sub_epi32(biased, _mm512_set1_epi32(127)))};
}
TRIREME_INLINE F32 mantissa_of(F32 a) {
  const __m512i fraction =
      _mm512_and_si512(_mm512_castps_si512(a.v), _mm512_set1_epi32(0x007fffff));
  return {_mm512_castsi512_ps(_mm512_or_si512(fraction, _mm512_set1_epi32(0x3f800000)))};
}

/// x * 2^floor(n), rounded once.
TRIREME_INLINE F32 scale_by_pow2(F32 x, F32 n) { return {_mm512_scalef_ps(x.v, n.v)}; }
/// table[i] where i are the lowest four bits of each lane.
TRIREME_INLINE F32 look_up(const float* table, F32 bits) {
  return {_mm512_permutexvar_ps(_mm512_castps_si512(bits.v), _mm512_loadu_ps(table))};
}
/// The upper half of p[0], its lower half, ... in the lowest four bits of the lanes.
TRIREME_INLINE F32 half_bytes(const std::uint8_t* p, Full = {}) {
  int bytes[2];
  __builtin_memcpy(bytes, p, sizeof bytes);
  const __m512i both =
      _mm512_inserti64x4(_mm512_set1_epi32(bytes[0]), _mm256_set1_epi32(bytes[1]), 1);
  const __m512i shifts =
      _mm512_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24, 4, 0, 12, 8, 20, 16, 28, 24);
  return {_mm512_castsi512_ps(_mm512_srlv_epi32(both, shifts))};
}
TRIREME_INLINE F32 half_bytes(const std::uint8_t* p, Tail t) {
  std::uint8_t bytes[8] = {};
  for (int i = 0; 2 * i < __builtin_popcount(t.lanes); ++i) bytes[i] = p[i];
  return half_bytes(bytes);
}

/// x[i] becomes column i: pairs of rows, then fours, whose quarters are then gathered.
TRIREME_INLINE void transpose(F32 (&x)[16]) {
  __m512 pairs[16], fours[16];
#pragma GCC unroll 8
  for (int i = 0; i < 16; i += 2) {
    pairs[i] = _mm512_unpacklo_ps(x[i].v, x[i + 1].v);
    pairs[i + 1] = _mm512_unpackhi_ps(x[i].v, x[i + 1].v);
  }
#pragma GCC unroll 4
  for (int i = 0; i < 16; i += 4) {
    fours[i] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0x44);
    fours[i + 1] = _mm512_shuffle_ps(pairs[i], pairs[i + 2], 0xee);
    fours[i + 2] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0x44);
    fours[i + 3] = _mm512_shuffle_ps(pairs[i + 1], pairs[i + 3], 0xee);
  }
  // Quarter q of fours[i + 4 r] is now column 4 q + i of rows 4 r to 4 r + 3.
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const __m512 even_low = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0x88),
                 odd_low = _mm512_shuffle_f32x4(fours[i], fours[i + 4], 0xdd),
                 even_high = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0x88),
                 odd_high = _mm512_shuffle_f32x4(fours[i + 8], fours[i + 12], 0xdd);
    x[i].v = _mm512_shuffle_f32x4(even_low, even_high, 0x88);
    x[i + 4].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0x88);
    x[i + 8].v = _mm512_shuffle_f32x4(even_low, even_high, 0xdd);
    x[i + 12].v = _mm512_shuffle_f32x4(odd_low, odd_high, 0xdd);
  }
}

#ifdef __AVX512BF16__
#define TRIREME_BF16_PAIRS
struct BF16Pairs {
  __m512i v;

  static TRIREME_INLINE BF16Pairs load(const BFloat16* p) { return {_mm512_loadu_si512(p)}; }
  static TRIREME_INLINE BF16Pairs load(const BFloat16* p, std::int64_t n) {
    return n >= 32 ? load(p) : BF16Pairs{_mm512_maskz_loadu_epi16((1U << n) - 1U, p)};
  }
  static TRIREME_INLINE BF16Pairs broadcast(const BFloat16* p) {
    int pair;
    __builtin_memcpy(&pair, p, sizeof pair);
    return {_mm512_set1_epi32(pair)};
  }
  template <class Lanes>
  static TRIREME_INLINE BF16Pairs of(const BFloat16* p, Lanes lanes) {
    return {_mm512_srli_epi32(_mm512_castps_si512(F32::load(p, lanes).v), 16)};
  }
  template <class Lanes>
  static TRIREME_INLINE BF16Pairs of(const BFloat16* p, const BFloat16* q, Lanes lanes) {
    const __m512i upper = _mm512_castps_si512(F32::load(q, lanes).v);
    return {_mm512_or_si512(of(p, lanes).v, upper)};
  }
  TRIREME_INLINE void store(BFloat16* p) const { _mm512_storeu_si512(p, v); }
  TRIREME_INLINE void store_halves(BFloat16* low, BFloat16* high) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(low), _mm512_castsi512_si256(v));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(high), _mm512_extracti64x4_epi64(v, 1));
  }
  [[nodiscard]] TRIREME_INLINE F32 bits() const { return {_mm512_castsi512_ps(v)}; }
};
TRIREME_INLINE F32 fma(BF16Pairs a, BF16Pairs b, F32 c) {
  return {_mm512_dpbf16_ps(c.v, (__m512bh)a.v, (__m512bh)b.v)};
}
#endif

struct F64 {
  static constexpr int kWidth = 8;
  __m512d v;

  static TRIREME_INLINE F64 zero() { return {_mm512_setzero_pd()}; }
  static TRIREME_INLINE F64 broadcast(double x) { return {_mm512_set1_pd(x)}; }
  static TRIREME_INLINE F64 load(const float* p) { return {_mm512_cvtps_pd(_mm256_loadu_ps(p))}; }
  static TRIREME_INLINE F64 load(const double* p) { return {_mm512_loadu_pd(p)}; }
  TRIREME_INLINE void store(double* p) const { _mm512_storeu_pd(p, v); }
};
TRIREME_INLINE F64 operator+(F64 a, F64 b) { return {_mm512_add_pd(a.v, b.v)}; }
TRIREME_INLINE F64 operator-(F64 a, F64 b) { return {_mm512_sub_pd(a.v, b.v)}; }
TRIREME_INLINE F64 operator*(F64 a, F64 b) { return {_mm512_mul_pd(a.v, b.v)}; }
TRIREME_INLINE F64 fma(F64 a, F64 b, F64 c) { return {_mm512_fmadd_pd(a.v, b.v, c.v)}; }

}  // namespace trireme::TRIREME_ISA::v16
