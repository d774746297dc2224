#pragma once
// Rows or columns of a matrix as panels (tile_product.h), for files compiled per instruction set.

#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {

/// to[k Width + i] = factor from[i stride + k] for i < rows <= Width, 0 for the other i. Also
/// writes up to a vector beyond each k, so that k ascends and a vector of space follows the panel.
template <std::int64_t Width, class T>
TRIREME_INLINE void pack_rows(float* to, const T* from, std::int64_t stride, std::int64_t rows,
                              std::int64_t k_count, float factor) {
  const F32 scale = F32::broadcast(factor);
  for (std::int64_t first = 0; first < Width; first += F32::kWidth) {
    for (std::int64_t k = 0; k < k_count; k += F32::kWidth) {
      const std::int64_t steps = k_count - k < F32::kWidth ? k_count - k : F32::kWidth;
      const Tail tail(steps);
      F32 x[F32::kWidth];
#pragma GCC unroll 16
      for (int i = 0; i < F32::kWidth; ++i) {
        const T* row = from + (first + i) * stride + k;
        if (first + i >= Width || first + i >= rows) {
          x[i] = F32::zero();
        } else {
          x[i] = (steps == F32::kWidth ? F32::load(row) : F32::load(row, tail)) * scale;
        }
      }
      transpose(x);
#pragma GCC unroll 16
      for (int i = 0; i < F32::kWidth; ++i) {
        if (i < steps) x[i].store(to + (k + i) * Width + first);
      }
    }
  }
}

/// to[k Width + i] = from[k stride + i] for i < columns <= Width, 0 for the other i; writes beyond
/// each k as pack_rows does.
template <std::int64_t Width>
TRIREME_INLINE void pack_columns(float* to, const float* from, std::int64_t stride,
                                 std::int64_t columns, std::int64_t k_count) {
  for (std::int64_t k = 0; k < k_count; ++k) {
    for (std::int64_t first = 0; first < Width; first += F32::kWidth) {
      const std::int64_t left = columns - first;
      F32::load(from + k * stride + first, Tail(left < 0 ? 0 : left)).store(to + k * Width + first);
    }
  }
}

}  // namespace trireme::TRIREME_ISA
