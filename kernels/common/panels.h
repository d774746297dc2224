#pragma once
// Rows or columns of a matrix as panels (tile_product.h), for files compiled per instruction set.
// pack_rows, pack_row_steps and pack_columns also write up to a vector beyond each step of K, so
// that k ascends and a vector of space follows the panel.

#include "kernels/common/step.h"

namespace trireme::TRIREME_ISA {

/// Step k of row i, of rows <= Width, becomes step k Width + i; 0 for the other i. load(i, k) gives
/// a vector of steps of row i from k on; what it gives beyond k_count is left out.
template <std::int64_t Width, class Load>
TRIREME_INLINE void pack_transposed(float* to, std::int64_t rows, std::int64_t k_count,
                                    const Load& load) {
  for (std::int64_t first = 0; first < Width; first += F32::kWidth) {
    for (std::int64_t k = 0; k < k_count; k += F32::kWidth) {
      F32 x[F32::kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < F32::kWidth; ++i)
        x[i] = first + i >= Width || first + i >= rows ? F32::zero() : load(first + i, k);
      transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < F32::kWidth; ++i) {
        if (k + i < k_count) x[i].store(to + (k + i) * Width + first);
      }
    }
  }
}

/// to[k Width + i] = factor from[i stride + k], in f32.
template <std::int64_t Width, class T>
TRIREME_INLINE void pack_rows(float* to, const T* from, std::int64_t stride, std::int64_t rows,
                              std::int64_t k_count, float factor) {
  const F32 scale = F32::broadcast(factor);
  pack_transposed<Width>(to, rows, k_count, [&](std::int64_t i, std::int64_t k) {
    const T* row = from + i * stride + k;
    const std::int64_t left = k_count - k;
    return (left >= F32::kWidth ? F32::load(row) : F32::load(row, Tail(left))) * scale;
  });
}

/// Row i begins at from[i stride].
template <std::int64_t Width, class T>
TRIREME_INLINE void pack_row_steps(T* to, const T* from, std::int64_t stride, std::int64_t rows,
                                   std::int64_t k_count) {
  constexpr std::int64_t kStep = StepOf<T>::kValues;
  pack_transposed<Width>(reinterpret_cast<float*>(to), rows, (k_count + kStep - 1) / kStep,
                         [&](std::int64_t i, std::int64_t k) {
                           return StepOf<T>::along(from + i * stride + k * kStep,
                                                   k_count - k * kStep);
                         });
}

/// Step k of column i, from[k stride + i], becomes step k Width + i, i < columns <= Width; else 0.
template <std::int64_t Width, class T>
TRIREME_INLINE void pack_columns(T* to, const T* from, std::int64_t stride, std::int64_t columns,
                                 std::int64_t k_count) {
  constexpr std::int64_t kStep = StepOf<T>::kValues;
  for (std::int64_t k = 0; k < k_count; k += kStep, to += Width * kStep) {
    for (std::int64_t first = 0; first < Width; first += F32::kWidth) {
      const Tail lanes(columns < first ? 0 : columns - first);
      StepOf<T>::across(from + k * stride + first, stride, lanes, k_count - k)
          .store(to + first * kStep);
    }
  }
}

/// Columns as panels half a vector wide, which begin `panel` elements apart; with an odd number of
/// panels, one more is written. Columns of one cache line are best packed together.
template <class T>
TRIREME_INLINE void pack_columns_in_halves(T* to, std::int64_t panel, const T* from,
                                           std::int64_t stride, std::int64_t columns,
                                           std::int64_t k_count) {
  constexpr std::int64_t kStep = StepOf<T>::kValues, kHalf = F32::kWidth / 2 * kStep;
  constexpr std::int64_t kAhead = 16 * kStep;
  for (std::int64_t k = 0; k < k_count; k += kStep, from += kStep * stride, to += kHalf) {
    StepOf<T>::prefetch(from + kAhead * stride, stride);
    T* pair = to;
    for (std::int64_t first = 0; first < columns; first += F32::kWidth, pair += 2 * panel) {
      const Tail lanes(columns - first);
      StepOf<T>::across(from + first, stride, lanes, k_count - k).store_halves(pair, pair + panel);
    }
  }
}

}  // namespace trireme::TRIREME_ISA
