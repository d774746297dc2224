#pragma once
// Moments in 8 bits (kernels/update/moment_codes.h) have a magnitude for each block of 256 elements
// of the whole tensor, in row-major order. How these lie on the ranks: pure arithmetic.

#include "store/param.h"

namespace trireme {

/// Smaller tensors have moments in fp32, as bitsandbytes' do (min_8bit_size).
inline constexpr std::int64_t kMoment8bitLeast = 4096;
inline bool has_8bit_moments(const ParamMeta& param) {
  return param.shape.count() >= kMoment8bitLeast;
}

/// Of a matrix whose rows are whole blocks [R, C / 256], else [blocks].
Shape moment_blocks_shape(const Shape& shape);

/// The magnitudes of a parameter as a parameter of their own: shared out with it where each rank
/// then has whole blocks, or all of the last one; where a cut crosses a block every rank has all
/// (Ownership::kEveryRank), and who updates joins them.
ParamMeta moment_blocks_of(const ParamMeta& param, const Distribution& ranks);

}  // namespace trireme
