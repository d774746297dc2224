#pragma once
// The arithmetic of mma.sync and wgmma.
#include <cstdint>

#include "kernels/ptx_host/decode.h"

namespace trireme::ptx {

/// d[rows x n] = a[rows x k] b[k x n] + d, all floats, row after row.
struct Tile {
  const float* a;
  const float* b;
  float* d;
  int rows, n, k;
};

/// What a Hopper tensor core does with one instruction's products: `block` products and the
/// accumulator are cut to `fraction` bits below the largest exponent among them, added exactly, and
/// cut to a float (or to 13 bits of fraction). Zeros have the exponent -133, of f16 sums -21.
/// (Measured on hardware: Xie et al., "MMA-Sim", 2025.)
struct CoreNumbers {
  int fraction = 25, block = 16, subnormal_a = -126, subnormal_b = -126;
  bool narrow_sum = false, half_sum = false;
};
CoreNumbers core_numbers(Type a, Type b, Type d, bool warpgroup);

/// By TRIREME_PTX_SUMS: "ascending" (the default: k upwards in fp32, each sum rounded) or
/// "tensor-core".
void multiply(const Tile& tile, const CoreNumbers& numbers);
/// One element as the tensor core sums it, over k values.
float core_sum(const float* a, const float* b, int k, float c, const CoreNumbers& numbers);

/// The number of an element of a register or of shared memory.
float number_of(std::uint32_t bits, Type type);

}  // namespace trireme::ptx
