#pragma once
// Factors of the pairs of a tile (AttentionDropout), for the files of attention compiled per
// instruction set.

#include "kernels/attention/attention_table.h"
#include "kernels/common/philox.h"

namespace trireme::TRIREME_ISA {

/// What stands side by side in a row of factors.
enum class FactorLanes : std::uint8_t { kQueries, kKeys };

/// Queries at these positions and keys at key_position, key_position + 1, ... of a sequence's head.
struct FactorTile {
  std::int64_t sequence, head;
  const std::int64_t* positions;
  std::int64_t queries, key_position, keys;
};

inline constexpr std::int64_t kDropQueries = 32, kDropKeys = 16;  ///< of a block of 64 numbers

/// [16][32] or, of lanes of keys, [32][16].
template <FactorLanes kLanes>
void factors_of_block(const AttentionDropping& dropping, const FactorTile& tile,
                      std::int64_t query_block, std::int64_t key_block, float* factors) {
  constexpr bool kQueries = kLanes == FactorLanes::kQueries;
  constexpr int kRow = kQueries ? kDropQueries : kDropKeys, kRowsOfPart = kPhiloxNumbers / 8;
  for (int first = 0; first < 8; first += kRowsOfPart) {
    PhiloxNumbers numbers;
    for (int i = 0; i < kPhiloxNumbers; ++i) {
      const int lane = i % 8, row = first + i / 8;
      numbers.words[0][i] = static_cast<std::uint32_t>(8 * query_block + (kQueries ? lane : row));
      numbers.words[1][i] = dropping.samples[tile.sequence * dropping.stride];
      numbers.words[2][i] = static_cast<std::uint32_t>(8 * key_block + (kQueries ? row : lane));
      numbers.words[3][i] = dropping.first_head + static_cast<std::uint32_t>(tile.head);
    }
    numbers.draw(dropping.key);
    for (int word = 0; word < 4; ++word) {
      for (int half = 0; half < 2; ++half) {
        float* const to =
            factors + (kQueries ? half * 8 * kRow + word * 8 : word * 8 * kRow + half * 8);
        for (int i = 0; i < kPhiloxNumbers; ++i) {
          const std::uint32_t number = numbers.words[word][i] >> (16 * half) & 0xffffU;
          to[(first + i / 8) * kRow + i % 8] = number >= dropping.dropped ? dropping.factor : 0.0F;
        }
      }
    }
  }
}

/// factors[key stride + query], or of lanes of keys [query stride + key].
template <FactorLanes kLanes>
void factors_of(const AttentionDropping& dropping, const FactorTile& tile, float* factors,
                std::int64_t stride) {
  constexpr bool kQueries = kLanes == FactorLanes::kQueries;
  constexpr std::int64_t kRow = kQueries ? kDropQueries : kDropKeys;
  const auto clipped = [](std::int64_t first, std::int64_t count, std::int64_t block,
                          std::int64_t size) {
    const std::int64_t begin = block * size, end = begin + size;
    return AttentionItem{first > begin ? first : begin, first + count < end ? first + count : end};
  };
  for (std::int64_t begin = 0, end = 0; begin < tile.queries; begin = end) {
    const std::int64_t first = tile.positions[begin];
    for (end = begin + 1; end < tile.queries && tile.positions[end] == first + end - begin;) ++end;
    for (std::int64_t a = first / kDropQueries; a * kDropQueries < first + end - begin; ++a) {
      for (std::int64_t b = tile.key_position / kDropKeys;
           b * kDropKeys < tile.key_position + tile.keys; ++b) {
        float block[kDropQueries * kDropKeys];
        factors_of_block<kLanes>(dropping, tile, a, b, block);
        const auto [q, q_end] = clipped(first, end - begin, a, kDropQueries);
        const auto [k, k_end] = clipped(tile.key_position, tile.keys, b, kDropKeys);
        const std::int64_t in_q = q - a * kDropQueries, in_k = k - b * kDropKeys,
                           to_q = begin + q - first, to_k = k - tile.key_position;
        const std::int64_t rows = kQueries ? k_end - k : q_end - q,
                           lanes = kQueries ? q_end - q : k_end - k;
        const float* from = block + (kQueries ? in_k * kRow + in_q : in_q * kRow + in_k);
        float* to = factors + (kQueries ? to_k * stride + to_q : to_q * stride + to_k);
        for (std::int64_t row = 0; row < rows; ++row)
          for (std::int64_t lane = 0; lane < lanes; ++lane)
            to[row * stride + lane] = from[row * kRow + lane];
      }
    }
  }
}

}  // namespace trireme::TRIREME_ISA
