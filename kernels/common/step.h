#pragma once
// A step of K: what one multiply-add of a lane takes of each operand, 32 bits. One f32; two bf16, k
// and k + 1, where the instruction set has pairs (simd.h). For files compiled per instruction set.

#include <xmmintrin.h>

#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {

template <class T>
struct StepOf;

template <>
struct StepOf<float> {
  using Vector = F32;
  static constexpr std::int64_t kValues = 1;

  static TRIREME_INLINE F32 broadcast(const float* step) { return F32::broadcast(*step); }
  /// Steps along a row, which may end after `values`; the rest is 0.
  static TRIREME_INLINE F32 along(const float* row, std::int64_t values) {
    return values >= F32::kWidth ? F32::load(row) : F32::load(row, Tail(values));
  }
  /// Each column's step from `row` on; there may be fewer than a step's rows.
  template <class Lanes = Full>
  static TRIREME_INLINE F32 across(const float* row, std::int64_t /*stride*/, Lanes lanes = {},
                                   std::int64_t /*rows*/ = 1) {
    return F32::load(row, lanes);
  }
  static TRIREME_INLINE void prefetch(const float* row, std::int64_t /*stride*/) {
    _mm_prefetch(row, _MM_HINT_T0);
  }
};

#ifdef TRIREME_BF16_PAIRS
template <>
struct StepOf<BFloat16> {
  using Vector = BF16Pairs;
  static constexpr std::int64_t kValues = 2;

  static TRIREME_INLINE BF16Pairs broadcast(const BFloat16* step) {
    return BF16Pairs::broadcast(step);
  }
  static TRIREME_INLINE F32 along(const BFloat16* row, std::int64_t values) {
    return BF16Pairs::load(row, values).bits();
  }
  template <class Lanes = Full>
  static TRIREME_INLINE BF16Pairs across(const BFloat16* row, std::int64_t stride, Lanes lanes = {},
                                         std::int64_t rows = 2) {
    return rows < 2 ? BF16Pairs::of(row, lanes) : BF16Pairs::of(row, row + stride, lanes);
  }
  static TRIREME_INLINE void prefetch(const BFloat16* row, std::int64_t stride) {
    _mm_prefetch(row, _MM_HINT_T0);
    _mm_prefetch(row + stride, _MM_HINT_T0);
  }
};
#endif

}  // namespace trireme::TRIREME_ISA
