#include "train/best_loss.h"

#include <cmath>

#include "base/error.h"

namespace trireme {

namespace {

double loss_of(const Json& json) {
  const Json* value = json.find("loss");
  return value != nullptr && value->is_number() ? value->as_double() : BestLoss::kNone;
}

std::int64_t integer_of(const Json& json, std::string_view key, std::int64_t otherwise) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : otherwise;
}

}  // namespace

void BestLoss::take(double found) {
  if (found < loss) {
    loss = found;
    evaluations_since = 0;
  } else {
    ++evaluations_since;
  }
}

Json to_json(const BestLoss& best) {
  Json json = Json::object();
  json["loss"] = best.loss;  // null where it is infinite
  json["evaluations_since"] = best.evaluations_since;
  Json kept = Json::object();
  kept["loss"] = best.kept.loss;
  kept["step"] = best.kept.step;
  kept["alone"] = best.kept.alone;
  json["kept"] = std::move(kept);
  return json;
}

BestLoss best_loss_of(const Json& scalars) {
  BestLoss best;
  const Json* json = scalars.find("best");
  if (json == nullptr || !json->is_object()) return best;
  best.loss = loss_of(*json);
  best.evaluations_since = integer_of(*json, "evaluations_since", 0);
  const Json* kept = json->find("kept");
  if (kept == nullptr || !kept->is_object()) return best;
  best.kept.loss = loss_of(*kept);
  best.kept.step = integer_of(*kept, "step", -1);
  const Json* alone = kept->find("alone");
  best.kept.alone = alone != nullptr && alone->is_bool() && alone->as_bool();
  return best;
}

double watched_loss(std::span<const SetLoss> losses, const std::string& watch) {
  expect(!losses.empty(), "an evaluation of nothing");
  double sum = 0;
  for (const SetLoss& set : losses) {
    if (!watch.empty() && set.name == watch) return set.loss;
    sum += set.loss;
  }
  expect(watch.empty(), "no validation set {}", watch);
  return sum / static_cast<double>(losses.size());
}

}  // namespace trireme
