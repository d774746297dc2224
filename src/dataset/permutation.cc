#include "dataset/permutation.h"

#include <cmath>

#include "base/error.h"
#include "base/random.h"

namespace trireme {
namespace {
constexpr std::uint64_t kRounds = 4;
}  // namespace

RandomPermutation::RandomPermutation(std::uint64_t key, std::uint64_t stream, std::int64_t count)
    : key_(key), stream_(stream), count_(static_cast<std::uint64_t>(count)) {
  expect(count >= 1 && count < (std::int64_t{1} << 62), "a permutation of {}", count);
  // Any grid that holds all numbers is right; a square one mixes best.
  rows_ = static_cast<std::uint64_t>(std::sqrt(static_cast<double>(count))) + 1;
  columns_ = (count_ + rows_ - 1) / rows_;
}

std::uint64_t RandomPermutation::mix(std::uint64_t round, std::uint64_t value) const {
  const auto words = philox(key_, (round << 40) | value, stream_);
  return (std::uint64_t{words[1]} << 32) | words[0];
}

std::int64_t RandomPermutation::operator()(std::int64_t index) const {
  auto value = static_cast<std::uint64_t>(index);
  expect(value < count_, "element {} of a permutation of {}", index, count_);
  do {
    std::uint64_t l = value / columns_, r = value % columns_;
    for (std::uint64_t round = 0; round < kRounds; ++round) {
      l = (l + mix(2 * round, r) % rows_) % rows_;
      r = (r + mix(2 * round + 1, l) % columns_) % columns_;
    }
    value = l * columns_ + r;
  } while (value >= count_);
  return static_cast<std::int64_t>(value);
}

}  // namespace trireme
