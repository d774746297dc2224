#pragma once

#include <filesystem>
#include <string_view>

#include "checkpoint/manifest.h"

namespace trireme {

inline constexpr std::string_view kVirtualViewName = "model.h5";

/// Writes FOLDER/model.h5: every tensor of the manifest whole, as a virtual dataset over the shards
/// beside it, for h5py and its kin. What is missing there reads as NaN without an error, so this
/// program never reads it. Throws DataError.
void write_virtual_view(const std::filesystem::path& folder, const Manifest& manifest);

}  // namespace trireme
