#pragma once

#include <cstdint>

namespace trireme {

/// A pseudo-random permutation of 0 ... count-1 without a table: any element in constant time and
/// memory. The numbers are written as l b + r on a grid of a x b >= count, mixed in turn (l += F(r)
/// mod a, r += F(l) mod b, F from Philox), and mixed again while beyond count, which on average
/// happens less than twice. A Feistel network with cycle walking: Black and Rogaway, "Ciphers with
/// arbitrary finite domains", CT-RSA 2002. The same on every machine.
class RandomPermutation {
 public:
  /// `stream` names one of 2^64 unrelated permutations of a key. count >= 1, below 2^62.
  RandomPermutation(std::uint64_t key, std::uint64_t stream, std::int64_t count);
  /// index in [0, count).
  [[nodiscard]] std::int64_t operator()(std::int64_t index) const;

 private:
  [[nodiscard]] std::uint64_t mix(std::uint64_t round, std::uint64_t value) const;
  std::uint64_t key_, stream_, count_, rows_, columns_;
};

}  // namespace trireme
