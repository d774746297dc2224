#include "base/random.h"

#include <xxhash.h>

namespace trireme {

std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key), k1 = static_cast<std::uint32_t>(key >> 32);
  std::uint32_t c0 = static_cast<std::uint32_t>(counter_low);
  std::uint32_t c1 = static_cast<std::uint32_t>(counter_low >> 32);
  std::uint32_t c2 = static_cast<std::uint32_t>(counter_high);
  std::uint32_t c3 = static_cast<std::uint32_t>(counter_high >> 32);
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53} * c0;
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57} * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c1 = static_cast<std::uint32_t>(p1);
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9;
    k1 += 0xBB67AE85;
  }
  return {c0, c1, c2, c3};
}

std::uint64_t stream_key(std::uint64_t seed, std::string_view name) {
  return XXH3_64bits_withSeed(name.data(), name.size(), seed);
}

float uniform(std::uint64_t key, std::uint64_t index) {
  return static_cast<float>(philox(key, index, 0)[0] >> 8) * 0x1p-24F;
}

float normal(std::uint64_t key, std::uint64_t index) {
  // Twelve uniforms on the 2^16 midpoints: mean 6 * 2^16 exactly, variance 1 - 2^-32.
  const auto a = philox(key, index, 1), b = philox(key, index, 2);
  std::int64_t sum = 6;  // twelve halves, the midpoints
  for (const std::uint32_t word : a) sum += (word & 0xffffU) + (word >> 16);
  for (int i = 0; i < 2; ++i) sum += (b[i] & 0xffffU) + (b[i] >> 16);
  return static_cast<float>(sum - 6 * 65536) * 0x1p-16F;
}

std::uint64_t uniform_below(std::uint64_t key, std::uint64_t bound, std::uint64_t* counter) {
  // Reject the incomplete last multiple of `bound`.
  const std::uint64_t limit = ~std::uint64_t{0} - (~std::uint64_t{0} % bound + 1) % bound;
  for (;;) {
    const auto words = philox(key, (*counter)++, 3);
    const std::uint64_t value = (std::uint64_t{words[1]} << 32) | words[0];
    if (value <= limit) return value % bound;
  }
}

}  // namespace trireme
