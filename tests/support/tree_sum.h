#pragma once

#include <bit>
#include <cstddef>

namespace trireme {

/// term(first) + ... in float as a tree of neighbours: the first 2^k terms, then the rest.
template <class Term>
float tree_sum(std::size_t first, std::size_t count, const Term& term) {
  if (count == 1) return term(first);
  const std::size_t half = std::bit_floor(count - 1);
  return tree_sum(first, half, term) + tree_sum(first + half, count - half, term);
}
template <class Term>
float tree_sum(std::size_t count, const Term& term) {
  return tree_sum(0, count, term);
}

}  // namespace trireme
