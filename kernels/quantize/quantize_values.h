#pragma once
// Maxima, scales and codes of runs of values on a CPU, for kernels/quantize and for ops that leave
// the codes of what they make.

#include "kernels/common/simd.h"
#include "kernels/quantize/quantize_table.h"

namespace trireme::TRIREME_ISA {

/// Bits of the largest magnitude of x[begin, end).
template <class T>
TRIREME_INLINE std::int32_t max_of_run(const T* x, std::int64_t begin, std::int64_t end) {
  constexpr std::int64_t kWidth = F32::kWidth;
  F32 most[2] = {F32::zero(), F32::zero()};
  std::int64_t c = begin;
  for (; c + 2 * kWidth <= end; c += 2 * kWidth) {
    for (int i = 0; i < 2; ++i) most[i] = max_bits(most[i], abs(F32::load(x + c + i * kWidth)));
  }
  for_each_vector(c, end, [&](std::int64_t at, auto lanes) {
    most[0] = max_bits(most[0], abs(F32::load(x + at, lanes)));
  });
  return reduce_max_bits(max_bits(most[0], most[1]));
}

struct Scale {
  F32 factor, scale;
};
TRIREME_INLINE Scale scale_of(F32 amax, F32 largest) {
  const F32 one = F32::broadcast(1), infinity = F32::broadcast(__builtin_inff());
  const F32 most = F32::broadcast(__FLT_MAX__);
  const Mask not_finite = is_nan(amax) | (amax == infinity);
  F32 factor = min(largest / amax, most);  // of 0: replaced
  factor = select(not_finite | (amax == F32::zero()), one, factor);
  return {factor, select(not_finite, F32::broadcast(__builtin_nanf("")), one / factor)};
}

/// factors, scales (either may be null) of amax.
inline void scales_of_run(float* factors, float* scales, const std::int32_t* amax,
                          std::int64_t count, float largest) {
  const float* most = reinterpret_cast<const float*>(amax);
  for_each_vector(0, count, [&](std::int64_t i, auto lanes) {
    const Scale of = scale_of(F32::load(most + i, lanes), F32::broadcast(largest));
    if (factors != nullptr) of.factor.store(factors + i, lanes);
    if (scales != nullptr) of.scale.store(scales + i, lanes);
  });
}

/// Blocks whose scales are made together, so that none waits for another's division.
constexpr std::int64_t kBlocksAtOnce = 16;

/// Rows of y that an op has made, which stand `stride` behind each other: `count` columns of each.
template <class T>
struct MadeRows {
  const T* y;
  std::int64_t stride, rows, count;
};

/// The codes of those from row `row` and column `column` on, a whole number of blocks; with their
/// scales, and 0 behind. That many blocks at most. Gives the bits of y's largest magnitude.
template <class T>
std::int32_t encode_blocks(const RowCodes& to, std::int64_t row, std::int64_t column,
                           const MadeRows<T>& made) {
  constexpr std::int64_t kBlock = RowCodes::kBlock;
  const std::int64_t blocks = (made.count + kBlock - 1) / kBlock;
  std::int32_t amax[kBlocksAtOnce], most = 0;
  float factors[kBlocksAtOnce], scales[kBlocksAtOnce];
  const auto each_block = [&](const auto& f) {
    for (std::int64_t r = 0, i = 0; r < made.rows; ++r) {
      for (std::int64_t c = 0; c < made.count; c += kBlock, ++i)
        f(r, i, c, c + kBlock < made.count ? c + kBlock : made.count);
    }
  };
  each_block([&](std::int64_t r, std::int64_t i, std::int64_t c, std::int64_t end) {
    amax[i] = max_of_run(made.y + r * made.stride, c, end);
    most = most < amax[i] ? amax[i] : most;
  });
  scales_of_run(factors, scales, amax, made.rows * blocks, largest_of_f8(DType::kF8E4M3));
  each_block([&](std::int64_t r, std::int64_t i, std::int64_t c, std::int64_t end) {
    const std::int64_t at = (row + r) * to.width + column;
    to.scales[(at + c) / kBlock] = scales[i];
    const T* y = made.y + r * made.stride;
    auto* codes = reinterpret_cast<F8E4M3*>(to.codes + at);
    const F32 by = F32::broadcast(factors[i]);
    for_each_vector(c, end, [&](std::int64_t k, auto lanes) {
      (F32::load(y + k, lanes) * by).store(codes + k, lanes);
    });
    if (end == made.count)
      __builtin_memset(to.codes + at + end, 0, static_cast<std::size_t>(blocks * kBlock - end));
  });
  return most;
}

/// amax = max(amax, most), of which other threads have others.
inline void join_maximum(std::int32_t* amax, std::int32_t most) {
  std::int32_t seen = __atomic_load_n(amax, __ATOMIC_RELAXED);
  while (seen < most && !__atomic_compare_exchange_n(amax, &seen, most, true, __ATOMIC_RELAXED,
                                                     __ATOMIC_RELAXED)) {
  }
}

}  // namespace trireme::TRIREME_ISA
