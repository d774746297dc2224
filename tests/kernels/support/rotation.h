#pragma once
// What tests of ops that rotate heads have in common.

#include <cmath>

#include "kernels/support/op_test.h"

namespace trireme {

inline constexpr std::int64_t kPositions = 40;

/// cos_sin [kPositions, rotated].
inline TestTensor angles(std::int64_t rotated) {
  TestTensor table(DType::kF32, {kPositions, rotated});
  for (std::int64_t p = 0; p < kPositions; ++p) {
    for (std::int64_t j = 0; j < rotated / 2; ++j) {
      const double angle =
          static_cast<double>(p) *
          std::pow(100.0, -2.0 * static_cast<double>(j) / static_cast<double>(rotated));
      table.set(p * rotated + j, std::cos(angle));
      table.set(p * rotated + rotated / 2 + j, std::sin(angle));
    }
  }
  return table;
}

/// Heads stand in wider rows, some columns from the left.
struct Margins {
  std::int64_t before, after;
};
inline constexpr Margins kOdd{3, 2}, kAligned{16, 8};

}  // namespace trireme
