#pragma once
// Which weights of a checkpoint: its parameters, or their averages (optimizer.ema).

#include <cstdint>
#include <filesystem>
#include <string>

#include "checkpoint/manifest.h"

namespace trireme {

enum class WeightSet : std::uint8_t { kLast, kAveraged };

/// The tensor of a checkpoint that holds a parameter's weights. What has no average, since it was
/// not trained, has one value.
std::string stored_name(const Manifest& manifest, const std::string& parameter, WeightSet set);

/// Throws ConfigError where a checkpoint has no averages and these are asked for.
void require_weights(const Manifest& manifest, const std::filesystem::path& folder, WeightSet set);

}  // namespace trireme
