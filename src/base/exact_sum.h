#pragma once
// The exact sum of non-negative doubles as a fixed-point integer, so that neither order nor
// sharding changes a sum (a superaccumulator; Kulisch 1981). Ranks add words as integers.

#include <array>
#include <cstdint>

namespace trireme {

class ExactSum {
 public:
  /// 32 bits of value to a word, least first; the upper half of a word holds carries.
  static constexpr int kWords = 68;

  /// A finite value >= 0; NaN, infinities and negatives only raise `non_finite`.
  void add(double value) noexcept;
  void add(const ExactSum& other) noexcept;
  /// The sum, rounded once to nearest even; infinity above doubles; NaN after a non-finite value.
  [[nodiscard]] double value() const noexcept;
  [[nodiscard]] bool non_finite() const noexcept { return words_[kWords - 1] != 0; }

  /// For reductions: element-wise integer addition of the words of up to 2^20 sums is `add` of them
  /// all. Each call first brings words below 2^32. The last word counts non-finite values.
  [[nodiscard]] std::array<std::int64_t, kWords>& words() noexcept;

 private:
  void carry() noexcept;
  std::array<std::int64_t, kWords> words_{};
  std::int32_t additions_ = 0;  ///< since the last carry
};

}  // namespace trireme
