#include "parallel/expert_place.h"

#include <algorithm>
#include <numeric>

#include "base/error.h"

namespace trireme {

ExpertPlaces::ExpertPlaces(std::int64_t experts, int extent)
    : in_order_(static_cast<std::size_t>(experts)) {
  std::iota(in_order_.begin(), in_order_.end(), 0);
  for (int rank = 0; rank < extent; ++rank)
    begins_.push_back(even_slice(experts, extent, rank).begin);
  begins_.push_back(experts);
}

ExpertPlaces::ExpertPlaces(const std::vector<std::int32_t>& rank_of, int extent) {
  for (int rank = 0; rank < extent; ++rank) {
    begins_.push_back(std::ssize(in_order_));
    for (std::size_t e = 0; e < rank_of.size(); ++e)
      if (rank_of[e] == rank) in_order_.push_back(static_cast<std::int32_t>(e));
  }
  begins_.push_back(std::ssize(in_order_));
  expect(in_order_.size() == rank_of.size(), "{} of {} experts have a rank of {}", in_order_.size(),
         rank_of.size(), extent);
}

std::vector<std::int32_t> ExpertPlaces::experts_of(int rank) const {
  const Slice slice = of(rank);
  const auto first = in_order_.begin() + slice.begin;
  return {first, first + slice.size};
}

std::int64_t ExpertPlaces::most() const {
  std::int64_t most = 0;
  for (std::size_t i = 0; i + 1 < begins_.size(); ++i)
    most = std::max(most, begins_[i + 1] - begins_[i]);
  return most;
}

std::vector<std::int32_t> ExpertPlaces::place_on(int rank) const {
  std::vector<std::int32_t> places(in_order_.size(), -1);
  const Slice slice = of(rank);
  for (std::int64_t i = 0; i < slice.size; ++i)
    places[static_cast<std::size_t>(in_order_[static_cast<std::size_t>(slice.begin + i)])] =
        static_cast<std::int32_t>(i);
  return places;
}

std::vector<std::int32_t> ExpertPlaces::place_in_order() const {
  std::vector<std::int32_t> places(in_order_.size());
  for (std::size_t i = 0; i < in_order_.size(); ++i)
    places[static_cast<std::size_t>(in_order_[i])] = static_cast<std::int32_t>(i);
  return places;
}

std::vector<std::int32_t> ExpertPlaces::ranks() const {
  std::vector<std::int32_t> ranks(in_order_.size());
  for (int rank = 0; rank + 1 < static_cast<int>(begins_.size()); ++rank)
    for (const std::int32_t e : experts_of(rank)) ranks[static_cast<std::size_t>(e)] = rank;
  return ranks;
}

}  // namespace trireme
