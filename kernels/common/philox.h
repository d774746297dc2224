#pragma once
// Philox-4x32-10 of several counters at once, as base/random.h has it, for files compiled per
// instruction set.

#include <cstdint>

namespace trireme::TRIREME_ISA {

inline constexpr int kPhiloxNumbers = 16;  // for vectors of 8 and 16

/// The words of counters, which become those of the numbers.
struct PhiloxNumbers {
  std::uint32_t words[4][kPhiloxNumbers];

  inline __attribute__((always_inline)) void draw(std::uint64_t key) {
    std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < kPhiloxNumbers; ++i) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53} * words[0][i];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * words[2][i];
        words[0][i] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1][i] ^ k0;
        words[1][i] = static_cast<std::uint32_t>(p1);
        words[2][i] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3][i] ^ k1;
        words[3][i] = static_cast<std::uint32_t>(p0);
      }
      k0 += 0x9E3779B9;
      k1 += 0xBB67AE85;
    }
  }
};

}  // namespace trireme::TRIREME_ISA
