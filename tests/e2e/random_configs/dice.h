#pragma once
// Draws for the generator of random configs: a seed gives the same configs everywhere.

#include <cstdint>
#include <initializer_list>
#include <vector>

#include "base/error.h"
#include "base/random.h"

namespace trireme {

class Dice {
 public:
  explicit Dice(std::uint64_t key) : key_(key) {}

  /// Uniform in [from, to].
  std::int64_t between(std::int64_t from, std::int64_t to) {
    expect(from <= to, "no number from {} to {}", from, to);
    const auto span = static_cast<std::uint64_t>(to - from) + 1;
    return from + static_cast<std::int64_t>(uniform_below(key_, span, &counter_));
  }
  /// True this many times in a hundred.
  bool percent(int chance) { return between(0, 99) < chance; }

  template <class T>
  const T& pick(const std::vector<T>& list) {
    return list[static_cast<std::size_t>(between(0, static_cast<std::int64_t>(list.size()) - 1))];
  }
  template <class T>
  T pick(std::initializer_list<T> list) {
    return pick(std::vector<T>(list));
  }
  const char* word(std::initializer_list<const char*> list) { return pick(list); }

 private:
  std::uint64_t key_, counter_ = 0;
};

}  // namespace trireme
