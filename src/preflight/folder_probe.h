#pragma once
// What the hosts of a job find in a folder that all of them are to write in.

#include <cstdint>
#include <filesystem>
#include <string>

#include "comm/launch.h"

namespace trireme {

/// On one host.
struct FolderFacts {
  std::string fault;             ///< why it cannot be used at all; the rest is then unknown
  bool appears = true;           ///< what rank 0 writes appears here
  std::string refused;           ///< why nothing can be written here
  std::int64_t free_bytes = -1;  ///< -1: not known
  std::int64_t free_files = -1;  ///< likewise, also where the file system has no limit
  double bytes_per_second = 0;   ///< written and brought to the disk; 0: not known
};

/// Writes to a file without a name, so that none is left whatever happens, for about `seconds` and
/// no more than `bytes_max`. Fills in `refused` and `bytes_per_second`.
void time_writing(const std::filesystem::path& folder, double seconds, std::int64_t bytes_max,
                  FolderFacts& facts);

/// Of this rank's host; measured by the first rank of each, all hosts at once. Collective.
FolderFacts probe_folder(const Launch& launch, const std::filesystem::path& folder);

}  // namespace trireme
