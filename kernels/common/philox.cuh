#pragma once
// Philox-4x32-10 as base/random.h has it.

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

/// The words of a counter become those of its number.
__device__ __forceinline__ void philox(std::uint64_t key, std::uint32_t (&words)[4]) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
#pragma unroll
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * words[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * words[2];
    words[0] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1] ^ k0;
    words[1] = static_cast<std::uint32_t>(p1);
    words[2] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3] ^ k1;
    words[3] = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
}

}  // namespace trireme::cuda
