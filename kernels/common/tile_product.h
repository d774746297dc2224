#pragma once
// Products of tiles, for files compiled per instruction set:
//   C[m, n] (+)= sum_k A[m, k] B[k, n]
// n runs along vector lanes, A is broadcast step by step (step.h), a few rows by two vectors of C
// stay in registers over all of k. Each element of C is one chain of multiply-adds over ascending
// steps, so its bits do not depend on the rows and columns around it.
//
// A panel is a few rows of A or columns of B beside each other: step k of i at [k width + i].

#include "kernels/common/step.h"

namespace trireme::TRIREME_ISA {

inline constexpr std::int64_t kPanel = 2 * F32::kWidth;  // columns of C in registers
inline constexpr int kRowsInRegisters =
    F32::kWidth == 16 ? 8 : 6;  // 16 accumulators of 32, 12 of 16

/// How A lies: step k of m at a[m * stride + k], or at a[k * stride + m], in steps.
enum class OperandA : std::uint8_t { kRows, kColumns };
/// C = AB, C += AB, or row m: C = C row_scale[m] + AB.
enum class Store : std::uint8_t { kSet, kAdd, kScaleAndAdd };

/// What the first tile of a row or column of tiles leaves as a panel for those after it.
enum class Pack : std::uint8_t { kNone, kA, kB, kBoth };

/// A, B of T, f32 or bf16, C of either. In bf16, what lies across K is a panel; kB makes b one.
template <class T = float, class C = float>
struct Product {
  const T* a;
  std::int64_t a_stride;
  const T* b;
  std::int64_t b_stride;
  C* c;
  std::int64_t c_stride;
  std::int64_t rows, columns, depth;  ///< columns: a multiple of the vector width; depth: steps
  const float* row_scale;             ///< of kScaleAndAdd
  T* a_panel;                         ///< of kA: kRowsInRegisters wide
  T* b_panel;                         ///< of kB: kPanel wide
};

template <OperandA kA, Store kStore, int kRows, int kVectors, Pack kPack = Pack::kNone, class T,
          class C>
void multiply_registers(const Product<T, C>& x, std::int64_t row, std::int64_t column) {
  constexpr bool kPackA = kPack == Pack::kA || kPack == Pack::kBoth,
                 kPackB = kPack == Pack::kB || kPack == Pack::kBoth;
  static_assert(!kPackA || (kA == OperandA::kColumns && StepOf<T>::kValues == 1));
  using Step = StepOf<T>;
  using Vector = typename Step::Vector;
  constexpr std::int64_t kStep = Step::kValues, kVector = F32::kWidth * kStep;
  // What is packed comes from afar, in steps of a row, which no CPU foresees beyond a page.
  constexpr std::int64_t kAhead = 24;
  F32 sum[kRows][kVectors];
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) sum[r][v] = F32::zero();
  }
  const std::int64_t a_stride = x.a_stride, b_stride = x.b_stride;
  const T* a = x.a + (kA == OperandA::kRows ? row * a_stride : row * kStep);
  const T* b = x.b + (kPackB ? column : column * kStep);
#pragma GCC unroll 4
  for (std::int64_t k = 0; k < x.depth; ++k) {
    Vector factor[kVectors];
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      if constexpr (kPackB) {
        factor[v] = Step::across(b + v * F32::kWidth, b_stride);
        factor[v].store(x.b_panel + k * kPanel * kStep + v * kVector);
        Step::prefetch(b + kAhead * kStep * b_stride + v * F32::kWidth, b_stride);
        _mm_prefetch(b + kPanel + v * F32::kWidth, _MM_HINT_T1);  // the next columns'
      } else {
        factor[v] = Vector::load(b + v * kVector);
      }
    }
    if constexpr (kPackA) {
      __builtin_memcpy(x.a_panel + k * kRows, a, kRows * sizeof(T));
      Step::prefetch(a + kAhead * a_stride, a_stride);
    }
#pragma GCC unroll 8
    for (int r = 0; r < kRows; ++r) {
      const Vector one = Step::broadcast(a + (kA == OperandA::kRows ? r * a_stride : r * kStep));
#pragma GCC unroll 2
      for (int v = 0; v < kVectors; ++v) sum[r][v] = fma(one, factor[v], sum[r][v]);
    }
    a += kA == OperandA::kRows ? kStep : a_stride;
    b += kPackB ? kStep * b_stride : b_stride;
  }
#pragma GCC unroll 8
  for (int r = 0; r < kRows; ++r) {
    C* c = x.c + (row + r) * x.c_stride + column;
    const F32 scale = F32::broadcast(kStore == Store::kScaleAndAdd ? x.row_scale[row + r] : 1.0F);
#pragma GCC unroll 2
    for (int v = 0; v < kVectors; ++v) {
      F32 value = sum[r][v];
      if constexpr (kStore == Store::kAdd) value = F32::load(c + v * F32::kWidth) + value;
      if constexpr (kStore == Store::kScaleAndAdd)
        value = fma(F32::load(c + v * F32::kWidth), scale, value);
      value.store(c + v * F32::kWidth);
    }
  }
}

template <OperandA kA, Store kStore, int kVectors>
TRIREME_INLINE void multiply_rest(const Product<>& x, std::int64_t row, std::int64_t column) {
  switch (x.rows - row) {
    case 1:
      return multiply_registers<kA, kStore, 1, kVectors>(x, row, column);
    case 2:
      return multiply_registers<kA, kStore, 2, kVectors>(x, row, column);
    case 3:
      return multiply_registers<kA, kStore, 3, kVectors>(x, row, column);
    case 4:
      return multiply_registers<kA, kStore, 4, kVectors>(x, row, column);
    case 5:
      return multiply_registers<kA, kStore, 5, kVectors>(x, row, column);
    case 6:
      return multiply_registers<kA, kStore, 6, kVectors>(x, row, column);
    case 7:
      return multiply_registers<kA, kStore, 7, kVectors>(x, row, column);
    default:
      return;
  }
}

template <OperandA kA, Store kStore, int kVectors>
TRIREME_INLINE void multiply_columns(const Product<>& x, std::int64_t column) {
  std::int64_t row = 0;
  for (; row + kRowsInRegisters <= x.rows; row += kRowsInRegisters) {
    multiply_registers<kA, kStore, kRowsInRegisters, kVectors>(x, row, column);
  }
  multiply_rest<kA, kStore, kVectors>(x, row, column);
}

template <OperandA kA, Store kStore>
void multiply(const Product<>& x) {
  std::int64_t column = 0;
  for (; column + kPanel <= x.columns; column += kPanel) multiply_columns<kA, kStore, 2>(x, column);
  if (column < x.columns) multiply_columns<kA, kStore, 1>(x, column);
}

}  // namespace trireme::TRIREME_ISA
