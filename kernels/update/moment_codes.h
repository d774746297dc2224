#pragma once
// Moments in 8 bits (Dettmers et al., "8-bit Optimizers via Block-wise Quantization", arXiv
// 2110.02861) with bitsandbytes' maps, in blocks of 256 elements that follow each other in the
// row-major order of the whole tensor.
//
//   absmax = max |x| over a block
//   v      = x * (1 / max(absmax, 1e-38))         in f32
//   code   = of the 255 midpoints between neighbouring values of the map those that are less than
//            v: the nearest value, the lower one of two
//   x'     = map[code] * absmax                   in f32
//
// A map's values are the middles of even parts of the decades from 1e-7 to 1, of which each has
// twice the parts of the one below: of signed values 127 on each side of 0, of unsigned ones 254;
// and 0, and 1. A block with a value that is not finite has none that is when it comes back.
// (bitsandbytes' CPU finds codes by a table of 65,536 even cells, which for small values is the
// next code, or another below 1e-5; its other backends give the nearest.)

#include <cstdint>

namespace trireme {

inline constexpr std::int64_t kMomentBlock = 256;
/// What a block's largest magnitude is taken for where it is less.
inline constexpr float kMomentLeast = 1e-38F;

/// A map, and how the code of v is found by v's bits: magnitudes whose bits agree but for the
/// lowest `shift` are a cell, in which the code changes once at most.
struct MomentCodes {
  static constexpr int kCellsMost = 2960;
  float value[256];
  /// Of a cell: the code of its smallest magnitude and, above 8 bits, the last of the lower bits
  /// with that code; behind it comes the next code, or below 0 the one before. Negative values have
  /// cells of their own, behind the others, where the map is signed.
  std::uint32_t cells[kCellsMost];
  std::int32_t shift;
  std::int32_t first, count;  ///< of a sign's cells: bits >> shift of the first; others are nearest
  std::int32_t negative;      ///< where those of negative values begin; 0: there are none
};

struct MomentTables {
  MomentCodes of_signed, of_unsigned;
};
const MomentTables& moment_tables();

/// That of x in a block of that magnitude.
std::uint8_t moment_code(const MomentCodes& map, float x, float absmax);

}  // namespace trireme
