// Batches that divide: two of their three numbers, or one, or all.

#include <algorithm>

#include "e2e/random_configs/random_config.h"

namespace trireme {

namespace {

/// Sizes of so many samples or a few times that, in phases of a step or a few.
Json draw_ramp(Dice& dice, std::int64_t unit, Situation& situation) {
  Json phases = Json::array();
  std::int64_t from = 0;
  situation.global = 0;
  for (std::int64_t left = dice.between(2, 4); left > 0; --left) {
    const std::int64_t size = unit * dice.between(1, 3);
    phases.push_back(Json::Array{from, size});
    situation.global = std::max(situation.global, size);
    from += dice.between(1, 2 * size * situation.sequence_length);
  }
  return phases;
}

}  // namespace

std::vector<std::pair<std::string, Json>> draw_batch(Dice& dice, Situation& situation) {
  const std::int64_t micro = dice.pick<std::int64_t>({1, 1, 2, 3, 4});
  const std::int64_t accumulation = dice.pick<std::int64_t>({1, 1, 2, 3});
  const std::int64_t ranks = situation.data_ranks;
  situation.global = micro * accumulation * ranks;
  const bool ramp = dice.percent(25);
  switch (dice.between(0, 5)) {
    case 0:
      situation.global = micro * ranks;
      return {{"batch.micro", micro}};
    case 1:
      situation.global = accumulation * ranks;
      return {{"batch.global", ramp ? draw_ramp(dice, ranks, situation) : Json(situation.global)}};
    case 2:
      return {{"batch.micro", micro},
              {"batch.global",
               ramp ? draw_ramp(dice, micro * ranks, situation) : Json(situation.global)}};
    case 3:
      return {{"batch.global", situation.global}, {"batch.accumulation", accumulation}};
    case 4:
      return {{"batch.micro", micro}, {"batch.accumulation", accumulation}};
    default:
      return {{"batch.global", situation.global},
              {"batch.micro", micro},
              {"batch.accumulation", accumulation}};
  }
}

}  // namespace trireme
