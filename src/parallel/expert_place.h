#pragma once
// Which experts of a layer a rank holds: pure arithmetic.

#include <cstdint>
#include <vector>

#include "parallel/cut.h"

namespace trireme {

/// A rank among the neighbours of its pipeline stage that hold all experts of a layer together:
/// experts are dealt out to the ranks of `expert`, the columns of each to those of `tensor`, the
/// inner axis. Tokens travel between all of them.
struct ExpertCut {
  AxisRank expert, tensor;

  [[nodiscard]] int ranks() const { return expert.extent * tensor.extent; }
  [[nodiscard]] int index() const { return expert.index * tensor.extent + tensor.index; }
  friend bool operator==(const ExpertCut&, const ExpertCut&) = default;
};

/// The experts of one layer by rank of the expert axis, ascending on each. By default neighbours
/// lie together, evenly (the first ranks have one more).
class ExpertPlaces {
 public:
  ExpertPlaces(std::int64_t experts, int extent);
  /// `rank_of[e]`: that of expert e.
  ExpertPlaces(const std::vector<std::int32_t>& rank_of, int extent);

  /// Where a rank's experts stand among all, those of the first rank first.
  [[nodiscard]] Slice of(int rank) const {
    const auto at = static_cast<std::size_t>(rank);
    return {begins_[at], begins_[at + 1] - begins_[at]};
  }
  [[nodiscard]] std::vector<std::int32_t> experts_of(int rank) const;
  /// [E]: which of a rank's experts each is; -1: another rank's.
  [[nodiscard]] std::vector<std::int32_t> place_on(int rank) const;
  /// [E]: where each stands in that order.
  [[nodiscard]] const std::vector<std::int32_t>& place_in_order() const { return place_in_order_; }
  /// [E]: whose each is.
  [[nodiscard]] const std::vector<std::int32_t>& ranks() const { return ranks_; }

 private:
  std::vector<std::int32_t> ranks_, in_order_, place_in_order_;
  std::vector<std::int64_t> begins_;
};

}  // namespace trireme
