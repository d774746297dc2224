#pragma once
// The gradient of a weight that every token adds to: an accumulator for each piece of tokens, added
// in order; shapes and threads alone decide. For files compiled per instruction set.

#include "kernels/common/simd.h"

namespace trireme::TRIREME_ISA {

/// Where one piece sums `count` columns. Rows go to `recent`, which joins `total` every
/// kRowsPerBlock rows: a running f32 sum over thousands of rows would lose bits.
struct PartialSum {
  static constexpr std::int64_t kRowsPerBlock = 64;
  float* recent;
  float* total;
  std::int64_t count;

  /// Floats to keep for each piece: whole cache lines.
  static TRIREME_INLINE std::int64_t floats(std::int64_t count) {
    return 2 * ((count + 15) / 16 * 16);
  }

  static TRIREME_INLINE PartialSum of_piece(float* memory, int piece, std::int64_t count) {
    float* recent = memory + piece * floats(count);
    PartialSum sum{recent, recent + floats(count) / 2, count};
    __builtin_memset(recent, 0, static_cast<std::size_t>(floats(count)) * sizeof(float));
    return sum;
  }

  template <class Lanes>
  TRIREME_INLINE void add(std::int64_t c, Lanes lanes, F32 value) const {
    (F32::load(recent + c, lanes) + value).store(recent + c, lanes);
  }

  /// Call once for each row, counted from 0, after adding it; `last`: it is the last one.
  TRIREME_INLINE void finish_row(std::int64_t row, bool last) const {
    if (!last && (row + 1) % kRowsPerBlock != 0) return;
    for_each_vector(0, count, [&](std::int64_t c, auto lanes) {
      (F32::load(total + c, lanes) + F32::load(recent + c, lanes)).store(total + c, lanes);
      F32::zero().store(recent + c, lanes);
    });
  }
};

/// destination[c] += the totals of all pieces, in order.
TRIREME_INLINE void add_pieces(float* destination, const float* memory, int pieces,
                               std::int64_t count) {
  const std::int64_t size = PartialSum::floats(count);
  for_each_vector(0, count, [&](std::int64_t c, auto lanes) {
    F32 sum = F32::load(memory + size / 2 + c, lanes);
    for (int piece = 1; piece < pieces; ++piece)
      sum = sum + F32::load(memory + piece * size + size / 2 + c, lanes);
    (F32::load(destination + c, lanes) + sum).store(destination + c, lanes);
  });
}

}  // namespace trireme::TRIREME_ISA
