#include "parallel/expert_place.h"

#include "base/error.h"

namespace trireme {

namespace {

std::vector<std::int32_t> neighbours_together(std::int64_t experts, int extent) {
  std::vector<std::int32_t> ranks;
  for (int rank = 0; rank < extent; ++rank)
    ranks.insert(ranks.end(), static_cast<std::size_t>(even_slice(experts, extent, rank).size),
                 rank);
  return ranks;
}

}  // namespace

ExpertPlaces::ExpertPlaces(std::int64_t experts, int extent)
    : ExpertPlaces(neighbours_together(experts, extent), extent) {}

ExpertPlaces::ExpertPlaces(const std::vector<std::int32_t>& rank_of, int extent)
    : ranks_(rank_of), place_in_order_(rank_of.size()) {
  for (int rank = 0; rank < extent; ++rank) {
    begins_.push_back(std::ssize(in_order_));
    for (std::size_t e = 0; e < rank_of.size(); ++e) {
      if (rank_of[e] != rank) continue;
      place_in_order_[e] = static_cast<std::int32_t>(in_order_.size());
      in_order_.push_back(static_cast<std::int32_t>(e));
    }
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

std::vector<std::int32_t> ExpertPlaces::place_on(int rank) const {
  std::vector<std::int32_t> places(in_order_.size(), -1);
  const Slice slice = of(rank);
  for (std::int64_t i = 0; i < slice.size; ++i)
    places[static_cast<std::size_t>(in_order_[static_cast<std::size_t>(slice.begin + i)])] =
        static_cast<std::int32_t>(i);
  return places;
}

}  // namespace trireme
