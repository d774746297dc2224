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

struct WritingBounds {
  double seconds = 1.5;
  std::int64_t bytes = 64 << 20;
};
/// Writes to a file without a name, so that none is left whatever happens, until one of the bounds
/// or a quarter of `facts.free_bytes`. Fills in `refused`, or `bytes_per_second` where that is more
/// than before.
void time_writing(const std::filesystem::path& folder, FolderFacts& facts,
                  const WritingBounds& bounds = {});

/// Of this rank's host; measured by the first rank of each, all hosts at once. Collective.
FolderFacts probe_folder(const Launch& launch, const std::filesystem::path& folder);

}  // namespace trireme
