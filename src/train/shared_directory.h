#pragma once

#include <filesystem>

#include "comm/launch.h"

namespace trireme {

/// Throws SharedError unless every rank finds in `directory`, which exists on rank 0, the file that
/// rank 0 writes there (EnvironmentError otherwise, naming the host: a path of a local disk means
/// another folder on each host, and a checkpoint would be scattered over them), and may write there
/// itself (DataError). Nothing stays behind. Collective; a shared file system gets 10 s to show the
/// file everywhere.
void require_shared_directory(const Launch& launch, const std::filesystem::path& directory);

}  // namespace trireme
