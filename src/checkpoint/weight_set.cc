#include "checkpoint/weight_set.h"

#include <algorithm>

#include "store/state.h"

namespace trireme {

namespace {
constexpr const char* kParameters = "parameters/";
}

std::string stored_name(const Manifest& manifest, const std::string& parameter, WeightSet set) {
  const std::string average = average_name(parameter);
  const bool averaged = set == WeightSet::kAveraged && manifest.find(average) != nullptr;
  return averaged ? average : kParameters + parameter;
}

void require_weights(const Manifest& manifest, const std::filesystem::path& folder, WeightSet set) {
  const auto is_average = [](const ManifestTensor& tensor) {
    return tensor.name.starts_with(average_name(""));
  };
  if (set == WeightSet::kLast ||
      std::any_of(manifest.tensors.begin(), manifest.tensors.end(), is_average))
    return;
  throw ConfigError(
      "--ema: {} holds no averages of weights. Runs with optimizer.ema save them; leave --ema out",
      folder.string());
}

}  // namespace trireme
