#pragma once
// The numbers that wgmma multiplies, and its sums.

#include "kernels/simt_host/instructions.h"

namespace trireme::simt {

inline int bytes_of(WgmmaFormat format) { return format == WgmmaFormat::kBf16 ? 2 : 1; }
/// Of one instruction's sums: 32 bytes of an operand's row.
inline int depth_of(const WgmmaShape& shape) { return 32 / bytes_of(shape.a); }

float float_of_bf16(uint32_t bits);
float float_of_code(WgmmaFormat format, unsigned char code);

/// d [64, n] += a [64, depth] b [depth, n]: k upwards in fp32 or, of fp8 with
/// Options::tensor_core_sums, as Hopper's tensor cores add (README.md).
void multiply(const WgmmaShape& shape, float* d, const float* a, const float* b);

}  // namespace trireme::simt
