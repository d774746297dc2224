#pragma once
// One vector type for all CPU ops: F32 has 8 lanes in files compiled for AVX2 and 16 for AVX-512,
// else the same: an op is written once. A file that includes this is compiled once for each
// instruction set with TRIREME_ISA naming the namespace; it includes its table and base/float8.h
// alone and uses no std:: template (the linker keeps one copy of each, perhaps the AVX-512 one).
//
//   F32::load(p), x.store(p)     all lanes of float, BFloat16 or fp8: widened; rounded to nearest
//                                even, fp8 as by to_f8
//   load(p, lanes), store(...)   Full{}, or Tail(n): the first n, or all; others read 0, are
//                              not written
//   + - * / sqrt                 IEEE, one rounding
//   fma(a, b, c), fnma(a, b, c)  a b + c; c - a b
//   min(a, b), max(a, b)         b where either is NaN
//   < <= == is_nan               a Mask; & | any; select(mask or lanes, yes, no)
//   reduce_add, reduce_max       halves folded onto each other, a fixed tree
//   max_bits, reduce_max_bits    of the lanes as integers
//   pow2(n)                      2^n for integers -127 < n < 128
//   scale_by_pow2(x, n)          x 2^floor(n), one rounding
//   look_up(table, x)            table[the lowest four bits of x]
//   half_bytes(p, lanes)         the halves of bytes, a byte's upper one first, as such bits
//   exponent_of, mantissa_of     of normal x > 0
//   transpose(x)                 x[i], one for each lane, becomes column i
//   F64                          half as many lanes
//   BF16Pairs                    two bf16 in each lane, where TRIREME_BF16_PAIRS is defined:
//     load(p), load(p, n), store     as they lie; the first n values, others 0
//     broadcast(p)                   p[0], p[1] in all lanes
//     of(p, q, lanes), of(p, lanes)  p[i], q[i] in lane i; p[i], 0
//     store_halves(p, q)             the first half of the lanes, the second
//     bits()                         of each pair, as f32
//     fma(a, b, c)                   c + both products of a lane's pairs, rounded as the CPU does

#if defined(TRIREME_SIMD_HEADER)  // tests put an emulation here (tests/kernels/support/simd_wide.h)
#include TRIREME_SIMD_HEADER
#elif defined(__AVX512F__)
#include "kernels/common/simd_avx512.h"
namespace trireme::TRIREME_ISA {
using namespace v16;
}
#else
#include "kernels/common/simd_avx2.h"
namespace trireme::TRIREME_ISA {
using namespace v8;
}
#endif

namespace trireme::TRIREME_ISA {

/// Calls body(c, lanes) for each vector of [begin, end): Full for whole ones, then a Tail. The
/// arithmetic of both is the same, so an element's bits do not depend on where it stands.
template <class Body>
TRIREME_INLINE void for_each_vector(std::int64_t begin, std::int64_t end, const Body& body) {
  std::int64_t c = begin;
  for (; c + F32::kWidth <= end; c += F32::kWidth) body(c, Full{});
  if (c < end) body(c, Tail(end - c));
}

/// The sum of body(c, lanes) over [begin, end), in a tree that depends on the length alone; lanes
/// that a Tail leaves out may hold anything. Four running sums hide the additions' latency.
template <class Body>
TRIREME_INLINE float sum_over(std::int64_t begin, std::int64_t end, const Body& body) {
  constexpr std::int64_t kSums = 4;
  F32 sums[kSums] = {F32::zero(), F32::zero(), F32::zero(), F32::zero()};
  std::int64_t c = begin;
  for (; c + kSums * F32::kWidth <= end; c += kSums * F32::kWidth) {
    for (std::int64_t i = 0; i < kSums; ++i) sums[i] = sums[i] + body(c + i * F32::kWidth, Full{});
  }
  for_each_vector(c, end, [&](std::int64_t at, auto lanes) {
    sums[0] = sums[0] + select(lanes, body(at, lanes), F32::zero());
  });
  return reduce_add((sums[0] + sums[1]) + (sums[2] + sums[3]));
}

/// What is read back after x was stored as T: rounded for bf16, x itself for f32.
TRIREME_INLINE F32 as_stored(F32 x, const float*) { return x; }
TRIREME_INLINE F32 as_stored(F32 x, const BFloat16*) { return rounded_to_bf16(x); }

/// 2^(i / 16). Sixteen lanes look it up in one instruction: that leaves a polynomial of degree 3.
alignas(64) inline constexpr float kPow2Sixteenths[16] = {
    0x1.000000p+0F, 0x1.0b5586p+0F, 0x1.172b84p+0F, 0x1.2387a6p+0F, 0x1.306fe0p+0F, 0x1.3dea64p+0F,
    0x1.4bfdaep+0F, 0x1.5ab07ep+0F, 0x1.6a09e6p+0F, 0x1.7a1148p+0F, 0x1.8ace54p+0F, 0x1.9c4918p+0F,
    0x1.ae89fap+0F, 0x1.c199bep+0F, 0x1.d5818ep+0F, 0x1.ea4afap+0F};

/// e^x within 1.5 ulp; inf above 88.72, underflow to 0 below -103.97, NaN for NaN. x = n log 2 + r,
/// n a multiple of 1/16 or whole; e^r by a polynomial; 2^n by the table and the exponent.
TRIREME_INLINE F32 exp(F32 x) {
  x = max(F32::broadcast(-105.0F), min(F32::broadcast(90.0F), x));
  if constexpr (F32::kWidth == 16) {
    const F32 whole = F32::broadcast(0x1.8p23F);  // x + this has 16 n in its lowest bits
    const F32 shifted = fma(x, F32::broadcast(16 * 1.44269504F), whole), n = shifted - whole;
    F32 r = fnma(n, F32::broadcast(0x1.62e400p-5F), x);  // n * high part is exact
    r = fnma(n, F32::broadcast(0x1.7f7d1cp-24F), r);     // |r| <= log(2)/32
    const F32 q = fma(r, F32::broadcast(1.0F / 6), F32::broadcast(0.5F));
    const F32 t = look_up(kPow2Sixteenths, shifted);
    return scale_by_pow2(fma(t, fma(r * r, q, r), t), n * F32::broadcast(0.0625F));
  }
  const F32 n = round(x * F32::broadcast(1.44269504F));
  F32 r = fnma(n, F32::broadcast(0x1.62e400p-1F), x);  // n * high part is exact
  r = fnma(n, F32::broadcast(0x1.7f7d1cp-20F), r);     // |r| <= log(2)/2
  F32 q = F32::broadcast(0x1.6a2358p-10F);
  q = fma(q, r, F32::broadcast(0x1.123a6ap-7F));
  q = fma(q, r, F32::broadcast(0x1.5558f4p-5F));
  q = fma(q, r, F32::broadcast(0x1.555490p-3F));
  q = fma(q, r, F32::broadcast(0x1.fffffcp-2F));
  const F32 p = fma(q, r * r, r) + F32::broadcast(1.0F);
  const F32 half = floor(n * F32::broadcast(0.5F));
  return p * pow2(half) * pow2(n - half);
}

/// 2^x for x < 127, within 1.3 ulp; 0 (or a subnormal) below -126.5, exactly 1 for 0, NaN for NaN.
TRIREME_INLINE F32 exp2(F32 x) {
  if constexpr (F32::kWidth == 16) {
    x = max(F32::broadcast(-160.0F), x);
    const F32 whole = F32::broadcast(0x1.8p19F);  // x + this is rounded to sixteenths
    const F32 shifted = x + whole, n = shifted - whole, r = x - n;
    F32 q = fma(r, F32::broadcast(0x1.c6b08ep-5F), F32::broadcast(0x1.ebfbe0p-3F));
    q = fma(q, r, F32::broadcast(0x1.62e430p-1F));
    const F32 t = look_up(kPow2Sixteenths, shifted);
    return scale_by_pow2(fma(t * r, q, t), n);
  }
  // A polynomial of degree 6, minimax of the relative error (1.6e-8) with p(0) = 1.
  x = max(F32::broadcast(-127.0F), x);
  const F32 n = round(x), f = x - n;
  F32 p = F32::broadcast(0x1.41fbbcp-13F);
  p = fma(p, f, F32::broadcast(0x1.5f3e54p-10F));
  p = fma(p, f, F32::broadcast(0x1.3b2d4cp-7F));
  p = fma(p, f, F32::broadcast(0x1.c6aee8p-5F));
  p = fma(p, f, F32::broadcast(0x1.ebfbdcp-3F));
  p = fma(p, f, F32::broadcast(0x1.62e430p-1F));
  p = fma(p, f, F32::broadcast(1.0F));
  return p * pow2(n);
}

/// 1 / (1 + e^-x). tanh(x) = 2 sigmoid(2x) - 1, 0.5 (1 + tanh u) = sigmoid(2u) do not cancel.
TRIREME_INLINE F32 sigmoid(F32 x) {
  const F32 one = F32::broadcast(1.0F);
  return one / (one + exp(-x));
}

/// log x within 1.5 ulp for normal x > 0; -inf for 0, inf for inf, NaN for NaN or x < 0. Subnormals
/// count as 0. x = 2^n m, m in [sqrt(1/2), sqrt 2); log m = 2 atanh((m-1)/(m+1)) by its series.
TRIREME_INLINE F32 log(F32 x) {
  const F32 one = F32::broadcast(1.0F);
  F32 n = exponent_of(x), m = mantissa_of(x);
  const Mask high = F32::broadcast(1.41421356F) < m;
  m = select(high, m * F32::broadcast(0.5F), m);
  n = select(high, n + one, n);
  const F32 f = m - one, s = f / (f + F32::broadcast(2.0F)), z = s * s;
  F32 q = F32::broadcast(2.0F / 9);
  q = fma(q, z, F32::broadcast(2.0F / 7));
  q = fma(q, z, F32::broadcast(2.0F / 5));
  q = fma(q, z, F32::broadcast(2.0F / 3));
  const F32 half_square = F32::broadcast(0.5F) * f * f;
  const F32 low = fma(n, F32::broadcast(0x1.7f7d1cp-20F), s * fma(q, z, half_square));
  F32 y = fma(n, F32::broadcast(0x1.62e400p-1F), f - (half_square - low));
  y = select(F32::broadcast(__builtin_inff()) <= x, x, y);
  y = select(x < F32::broadcast(0x1p-126F), F32::broadcast(-__builtin_inff()), y);
  const Mask invalid = (x < F32::zero()) | is_nan(x);
  return select(invalid, F32::broadcast(__builtin_nanf("")), y);
}

}  // namespace trireme::TRIREME_ISA
