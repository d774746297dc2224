#pragma once
// Sixteen lanes made of two AVX2 registers, so that width-16 loops and tails run on a CPU without
// AVX-512. In place of simd_avx512.h for the test executables only; reductions follow the same
// tree, so results have the same bits.

#include "kernels/common/simd_avx2.h"

namespace trireme::TRIREME_ISA::wide {

struct Full {};
using Half = v8::F32;

struct Tail {
  v8::Tail low, high;
  TRIREME_INLINE explicit Tail(std::int64_t n) : low(n < 8 ? n : 8), high(n < 8 ? 0 : n - 8) {}
};

struct Mask {
  v8::Mask low, high;
};
TRIREME_INLINE Mask operator&(Mask a, Mask b) { return {a.low & b.low, a.high & b.high}; }
TRIREME_INLINE Mask operator|(Mask a, Mask b) { return {a.low | b.low, a.high | b.high}; }
TRIREME_INLINE bool any(Mask a) { return any(a.low) || any(a.high); }

struct F32 {
  static constexpr int kWidth = 16;
  Half low, high;

  static TRIREME_INLINE F32 zero() { return {Half::zero(), Half::zero()}; }
  static TRIREME_INLINE F32 broadcast(float x) { return {Half::broadcast(x), Half::broadcast(x)}; }
  static TRIREME_INLINE F32 iota() { return {Half::iota(), Half::iota() + Half::broadcast(8)}; }

  template <class T>
  static TRIREME_INLINE F32 load(const T* p, Full = {}) {
    return {Half::load(p), Half::load(p + 8)};
  }
  template <class T>
  static TRIREME_INLINE F32 load(const T* p, Tail t) {
    return {Half::load(p, t.low), Half::load(p + 8, t.high)};
  }
  template <class T>
  TRIREME_INLINE void store(T* p, Full = {}) const {
    low.store(p);
    high.store(p + 8);
  }
  template <class T>
  TRIREME_INLINE void store(T* p, Tail t) const {
    low.store(p, t.low);
    high.store(p + 8, t.high);
  }
};

TRIREME_INLINE F32 operator+(F32 a, F32 b) { return {a.low + b.low, a.high + b.high}; }
TRIREME_INLINE F32 operator-(F32 a, F32 b) { return {a.low - b.low, a.high - b.high}; }
TRIREME_INLINE F32 operator*(F32 a, F32 b) { return {a.low * b.low, a.high * b.high}; }
TRIREME_INLINE F32 operator/(F32 a, F32 b) { return {a.low / b.low, a.high / b.high}; }
TRIREME_INLINE F32 operator-(F32 a) { return {-a.low, -a.high}; }
TRIREME_INLINE F32 fma(F32 a, F32 b, F32 c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}
TRIREME_INLINE F32 fnma(F32 a, F32 b, F32 c) {
  return {fnma(a.low, b.low, c.low), fnma(a.high, b.high, c.high)};
}
TRIREME_INLINE F32 min(F32 a, F32 b) { return {min(a.low, b.low), min(a.high, b.high)}; }
TRIREME_INLINE F32 max(F32 a, F32 b) { return {max(a.low, b.low), max(a.high, b.high)}; }
TRIREME_INLINE F32 sqrt(F32 a) { return {sqrt(a.low), sqrt(a.high)}; }
TRIREME_INLINE F32 abs(F32 a) { return {abs(a.low), abs(a.high)}; }
TRIREME_INLINE F32 round(F32 a) { return {round(a.low), round(a.high)}; }
TRIREME_INLINE F32 floor(F32 a) { return {floor(a.low), floor(a.high)}; }

TRIREME_INLINE Mask operator<(F32 a, F32 b) { return {a.low < b.low, a.high < b.high}; }
TRIREME_INLINE Mask operator<=(F32 a, F32 b) { return {a.low <= b.low, a.high <= b.high}; }
TRIREME_INLINE Mask operator==(F32 a, F32 b) { return {a.low == b.low, a.high == b.high}; }
TRIREME_INLINE Mask is_nan(F32 a) { return {is_nan(a.low), is_nan(a.high)}; }
TRIREME_INLINE F32 select(Mask m, F32 yes, F32 no) {
  return {select(m.low, yes.low, no.low), select(m.high, yes.high, no.high)};
}
TRIREME_INLINE F32 select(Full, F32 yes, F32) { return yes; }
TRIREME_INLINE F32 select(Tail t, F32 yes, F32 no) {
  return {select(t.low, yes.low, no.low), select(t.high, yes.high, no.high)};
}

TRIREME_INLINE float reduce_add(F32 a) { return reduce_add(a.low + a.high); }
TRIREME_INLINE float reduce_max(F32 a) { return reduce_max(max(a.low, a.high)); }
TRIREME_INLINE F32 max_bits(F32 a, F32 b) {
  return {max_bits(a.low, b.low), max_bits(a.high, b.high)};
}
TRIREME_INLINE std::int32_t reduce_max_bits(F32 a) {
  return reduce_max_bits(max_bits(a.low, a.high));
}
TRIREME_INLINE F32 rounded_to_bf16(F32 a) {
  return {rounded_to_bf16(a.low), rounded_to_bf16(a.high)};
}
TRIREME_INLINE F32 pow2(F32 n) { return {pow2(n.low), pow2(n.high)}; }
TRIREME_INLINE F32 exponent_of(F32 a) { return {exponent_of(a.low), exponent_of(a.high)}; }
TRIREME_INLINE F32 mantissa_of(F32 a) { return {mantissa_of(a.low), mantissa_of(a.high)}; }

TRIREME_INLINE F32 scale_by_pow2(F32 a, F32 n) {
  return {scale_by_pow2(a.low, n.low), scale_by_pow2(a.high, n.high)};
}
TRIREME_INLINE F32 look_up(const float* table, F32 bits) {
  return {look_up(table, bits.low), look_up(table, bits.high)};
}
TRIREME_INLINE F32 half_bytes(const std::uint8_t* p, Full = {}) {
  return {v8::half_bytes(p), v8::half_bytes(p + 4)};
}
TRIREME_INLINE F32 half_bytes(const std::uint8_t* p, Tail t) {
  return {v8::half_bytes(p, t.low), v8::half_bytes(p + 4, t.high)};
}

TRIREME_INLINE void transpose(F32 (&x)[16]) {
  Half quarters[2][2][8];  // [rows from 0 or 8][columns from 0 or 8]
  for (int i = 0; i < 16; ++i) {
    quarters[i / 8][0][i % 8] = x[i].low;
    quarters[i / 8][1][i % 8] = x[i].high;
  }
  for (auto& rows : quarters) {
    for (auto& quarter : rows) transpose(quarter);
  }
  for (int i = 0; i < 16; ++i) x[i] = {quarters[0][i / 8][i % 8], quarters[1][i / 8][i % 8]};
}

#define TRIREME_BF16_PAIRS
struct BF16Pairs {
  BFloat16 v[32] = {};

  static TRIREME_INLINE BF16Pairs load(const BFloat16* p, std::int64_t n = 32) {
    BF16Pairs x;
    for (int i = 0; i < 32 && i < n; ++i) x.v[i] = p[i];
    return x;
  }
  static TRIREME_INLINE BF16Pairs broadcast(const BFloat16* p) {
    BF16Pairs x;
    for (int i = 0; i < 32; ++i) x.v[i] = p[i % 2];
    return x;
  }
  template <class Lanes>
  static TRIREME_INLINE BF16Pairs of(const BFloat16* p, Lanes lanes) {
    return of(p, nullptr, lanes);
  }
  template <class Lanes>
  static TRIREME_INLINE BF16Pairs of(const BFloat16* p, const BFloat16* q, Lanes lanes) {
    BFloat16 low[16], high[16] = {};
    F32::load(p, lanes).store(low);
    if (q != nullptr) F32::load(q, lanes).store(high);
    BF16Pairs x;
    for (int i = 0; i < 32; ++i) x.v[i] = (i % 2 == 0 ? low : high)[i / 2];
    return x;
  }
  TRIREME_INLINE void store(BFloat16* p) const { __builtin_memcpy(p, v, sizeof v); }
  TRIREME_INLINE void store_halves(BFloat16* low, BFloat16* high) const {
    __builtin_memcpy(low, v, sizeof v / 2);
    __builtin_memcpy(high, v + 16, sizeof v / 2);
  }
  [[nodiscard]] TRIREME_INLINE F32 bits() const {
    float both[16];
    __builtin_memcpy(both, v, sizeof v);
    return F32::load(both);
  }
};
TRIREME_INLINE F32 fma(BF16Pairs a, BF16Pairs b, F32 c) {
  float sums[16];
  c.store(sums);
  for (int i = 0; i < 32; ++i) sums[i / 2] += to_float(a.v[i]) * to_float(b.v[i]);
  return F32::load(sums);
}

struct F64 {
  static constexpr int kWidth = 8;
  v8::F64 low, high;

  static TRIREME_INLINE F64 zero() { return {v8::F64::zero(), v8::F64::zero()}; }
  static TRIREME_INLINE F64 broadcast(double x) {
    return {v8::F64::broadcast(x), v8::F64::broadcast(x)};
  }
  template <class T>
  static TRIREME_INLINE F64 load(const T* p) {
    return {v8::F64::load(p), v8::F64::load(p + 4)};
  }
  TRIREME_INLINE void store(double* p) const {
    low.store(p);
    high.store(p + 4);
  }
};
TRIREME_INLINE F64 operator+(F64 a, F64 b) { return {a.low + b.low, a.high + b.high}; }
TRIREME_INLINE F64 operator-(F64 a, F64 b) { return {a.low - b.low, a.high - b.high}; }
TRIREME_INLINE F64 operator*(F64 a, F64 b) { return {a.low * b.low, a.high * b.high}; }
TRIREME_INLINE F64 fma(F64 a, F64 b, F64 c) {
  return {fma(a.low, b.low, c.low), fma(a.high, b.high, c.high)};
}

}  // namespace trireme::TRIREME_ISA::wide

namespace trireme::TRIREME_ISA {
using namespace wide;
}
