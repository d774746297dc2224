#include "train/noise_scale.h"

#include <cmath>

namespace trireme {

namespace {

double number_of(const Json& json, std::string_view key) {
  const Json* value = json.find(key);
  return value != nullptr && value->is_number() ? value->as_double() : 0;
}

}  // namespace

NoiseScale::NoiseScale(const Json& scalars) {
  const Json* saved = scalars.find("noise");
  if (saved == nullptr || !saved->is_object()) return;
  gradient_ = number_of(*saved, "gradient");
  noise_ = number_of(*saved, "noise");
}

void NoiseScale::add(const NoiseSample& of) {
  const double gradient =
      (of.large * of.large_square - of.small * of.small_square) / (of.large - of.small);
  const double noise = (of.small_square - of.large_square) / (1 / of.small - 1 / of.large);
  if (!std::isfinite(gradient) || !std::isfinite(noise)) return;
  gradient_ = kDecay * gradient_ + gradient;
  noise_ = kDecay * noise_ + noise;
}

std::optional<double> NoiseScale::samples() const {
  if (!(gradient_ > 0) || !(noise_ > 0)) return std::nullopt;
  return noise_ / gradient_;
}

Json NoiseScale::json() const {
  if (gradient_ == 0 && noise_ == 0) return nullptr;
  return Json::Object{{"gradient", gradient_}, {"noise", noise_}};
}

}  // namespace trireme
