#pragma once
// Tiles of bytes across. For files compiled per instruction set; SSE2 serves all of them.

#include <emmintrin.h>

#include <cstdint>

#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {

/// Row i of 16, to[i to_stride ...], becomes what is column i of 16 rows of `from`.
TRIREME_INLINE void transpose_16_bytes(std::uint8_t* to, std::int64_t to_stride,
                                       const std::uint8_t* from, std::int64_t from_stride) {
  __m128i x[16], y[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    x[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i * from_stride));
    // Interleaving row i with row i + 8 four times over leaves the columns.
#pragma GCC unroll 4
  for (int pass = 0; pass < 4; ++pass) {
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i) {
      y[2 * i] = _mm_unpacklo_epi8(x[i], x[i + 8]);
      y[2 * i + 1] = _mm_unpackhi_epi8(x[i], x[i + 8]);
    }
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) x[i] = y[i];
  }
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to + i * to_stride), x[i]);
}

/// to[c, r] = from[r, c] for some rows and columns.
TRIREME_INLINE void transpose_bytes(std::uint8_t* to, std::int64_t to_stride,
                                    const std::uint8_t* from, std::int64_t from_stride,
                                    std::int64_t rows, std::int64_t columns) {
  const std::int64_t whole_rows = rows / 16 * 16, whole_columns = columns / 16 * 16;
  for (std::int64_t c = 0; c < whole_columns; c += 16) {
    for (std::int64_t r = 0; r < whole_rows; r += 16)
      transpose_16_bytes(to + c * to_stride + r, to_stride, from + r * from_stride + c,
                         from_stride);
  }
  for (std::int64_t c = 0; c < columns; ++c) {
    for (std::int64_t r = c < whole_columns ? whole_rows : 0; r < rows; ++r)
      to[c * to_stride + r] = from[r * from_stride + c];
  }
}

}  // namespace trireme::TRIREME_ISA
