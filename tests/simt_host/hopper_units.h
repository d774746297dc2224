#pragma once
// Small kernels that use one feature of Hopper each; their tests know the answers. They are
// compiled by nvcc too.

#include <cuda_bf16.h>

#include <array>
#include <cstdint>

namespace trireme::simt_cases {

using Bf16 = __nv_bfloat16;

/// to[c2.., c1.., c0..] = 2 from: a box of 2 x 8 x 64 of tensors [d2, d1, d0].
void double_box(Bf16* to, const Bf16* from, std::array<int, 3> d, std::array<int, 3> c);

/// What stmatrix makes of 32 lanes' registers [32, 4]: [32, 8] bf16, the rows of four matrices.
void store_matrices(Bf16* out, const std::uint32_t* registers);

/// to[i] += from[i], 64 numbers, by each of `blocks` blocks.
void add_in_bulk(float* to, const float* from, int blocks);

/// to[c3, c2.., c1, c0..] += from: a box of 1 x 8 x 1 x 32 of a tensor [d3, d2, d1, d0], by each of
/// `blocks` blocks.
void add_box(float* to, const float* from, std::array<int, 4> d, std::array<int, 4> c, int blocks);

/// out[64, n] = twice a b^T, with a [64, 64] from shared memory and then from registers, b [n, 64].
void multiply_a_from_registers(float* out, const Bf16* a, const Bf16* b, int n);

/// out[64, n] = op(a) op(b)^T over k = 64: a is [64, k], or [k, 64] where a_mn_major; b is [n, k],
/// or [k, n] where b_mn_major. n: 64, 96, 128, 192 or 256.
void multiply_majors(float* out, const Bf16* a, const Bf16* b, int n, bool a_mn_major,
                     bool b_mn_major);

}  // namespace trireme::simt_cases
