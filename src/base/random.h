#pragma once
// Counter-based random numbers: a value is a function of (key, index): any rank makes any element.
// Philox-4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011).

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

namespace trireme {

/// Four 32-bit words for a 64-bit key and a 128-bit counter.
std::array<std::uint32_t, 4> philox(std::uint64_t key, std::uint64_t counter_low,
                                    std::uint64_t counter_high);

/// A key for a named stream: XXH3-64 of the name, seeded.
std::uint64_t stream_key(std::uint64_t seed, std::string_view name);

/// Uniform in [0, 1) with 24 bits.
float uniform(std::uint64_t key, std::uint64_t index);

/// Approximately N(0, 1): the sum of twelve 16-bit uniforms, centred (Irwin-Hall, |x| < 6).
/// Only integer sums and one exact product, so every machine gives the same bits.
float normal(std::uint64_t key, std::uint64_t index);

/// out[i] = scale * normal(key, first + i), several at a time; the same bits.
void fill_normal(std::uint64_t key, std::uint64_t first, float scale, std::span<float> out);

/// out[i] = bound * (2 uniform(key, first + i) - 1).
void fill_uniform(std::uint64_t key, std::uint64_t first, float bound, std::span<float> out);

/// Uniform in [0, bound) without bias; bound > 0. A sequence: each call advances *counter.
std::uint64_t uniform_below(std::uint64_t key, std::uint64_t bound, std::uint64_t* counter);

}  // namespace trireme
