#include "base/exact_sum.h"

#include <bit>
#include <cmath>
#include <limits>

namespace trireme {
namespace {

constexpr int kBits = 32;  // of value in a word
constexpr int kTop =
    ExactSum::kWords - 2;  // holds what overflows the words below; no double reaches it
constexpr int kNonFinite = ExactSum::kWords - 1;
constexpr int kLowestExponent = -1074;  // bit 0 of word 0 is the smallest subnormal
constexpr std::uint64_t kWordMask = 0xffffffffU;
// Each addition puts less than 2^32 into a word, so a word stays below 2^63 with room to spare.
constexpr std::int32_t kAdditionsMax = 1 << 24;

/// Bits [from, from + 64) of a number of normalised words.
std::uint64_t window(const std::array<std::int64_t, ExactSum::kWords>& words, int from) {
  unsigned __int128 bits = 0;
  for (int i = 2; i >= 0; --i) {
    const int word = from / kBits + i;
    bits = bits << kBits |
           (word <= kTop ? static_cast<std::uint64_t>(words[static_cast<std::size_t>(word)]) : 0U);
  }
  return static_cast<std::uint64_t>(bits >> (from % kBits));
}

bool any_bit_below(const std::array<std::int64_t, ExactSum::kWords>& words, int end) {
  for (int word = 0; word < end / kBits; ++word) {
    if (words[static_cast<std::size_t>(word)] != 0) return true;
  }
  return (words[static_cast<std::size_t>(end / kBits)] &
          ((std::int64_t{1} << (end % kBits)) - 1)) != 0;
}

}  // namespace

void ExactSum::add(double value) noexcept {
  if (!(value >= 0) || std::isinf(value)) {
    ++words_[kNonFinite];
    return;
  }
  if (additions_ >= kAdditionsMax) carry();
  ++additions_;
  const auto bits = std::bit_cast<std::uint64_t>(value);
  const int exponent = static_cast<int>(bits >> 52 & 0x7ff);  // 0 for subnormals and -0
  const std::uint64_t fraction = bits & ((std::uint64_t{1} << 52) - 1);
  const std::uint64_t mantissa = exponent == 0 ? fraction : fraction | std::uint64_t{1} << 52;
  const int position = exponent == 0 ? 0 : exponent - 1;  // of the mantissa's last bit
  const unsigned __int128 shifted = static_cast<unsigned __int128>(mantissa) << (position % kBits);
  std::int64_t* word = &words_[static_cast<std::size_t>(position / kBits)];
  word[0] += static_cast<std::int64_t>(static_cast<std::uint64_t>(shifted) & kWordMask);
  word[1] += static_cast<std::int64_t>(static_cast<std::uint64_t>(shifted >> kBits) & kWordMask);
  word[2] += static_cast<std::int64_t>(static_cast<std::uint64_t>(shifted >> 2 * kBits));
}

void ExactSum::add(const ExactSum& other) noexcept {
  ExactSum normalised = other;
  normalised.carry();
  carry();
  for (std::size_t i = 0; i < words_.size(); ++i) words_[i] += normalised.words_[i];
  additions_ = 1;
}

std::array<std::int64_t, ExactSum::kWords>& ExactSum::words() noexcept {
  carry();
  additions_ = kAdditionsMax;  // the caller may have added others' words
  return words_;
}

void ExactSum::carry() noexcept {
  for (std::size_t i = 0; i < kTop; ++i) {
    words_[i + 1] += words_[i] >> kBits;
    words_[i] &= static_cast<std::int64_t>(kWordMask);
  }
  additions_ = 0;
}

double ExactSum::value() const noexcept {
  if (non_finite()) return std::numeric_limits<double>::quiet_NaN();
  ExactSum sum = *this;
  sum.carry();
  if (sum.words_[kTop] != 0) return std::numeric_limits<double>::infinity();
  int top = kTop - 1;
  while (top >= 0 && sum.words_[static_cast<std::size_t>(top)] == 0) --top;
  if (top < 0) return 0;
  const int length =
      top * kBits +
      std::bit_width(static_cast<std::uint64_t>(sum.words_[static_cast<std::size_t>(top)]));
  const int lowest = length > 53 ? length - 53 : 0;  // the last bit that fits; subnormals are exact
  std::uint64_t mantissa = window(sum.words_, lowest);
  if (lowest > 0) {
    const bool half = (window(sum.words_, lowest - 1) & 1) != 0;
    const bool odd = (mantissa & 1) != 0;
    if (half && (odd || any_bit_below(sum.words_, lowest - 1))) ++mantissa;
  }
  return std::ldexp(static_cast<double>(mantissa), lowest + kLowestExponent);
}

}  // namespace trireme
