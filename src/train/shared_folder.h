#pragma once

#include <filesystem>
#include <string>

#include "comm/launch.h"

namespace trireme {

/// A file that rank 0 writes into a folder, by which the others find out whether theirs is the same
/// one. It goes with this object, or, where its process was killed, with the next one in that
/// folder that is a minute younger.
class FolderMark {
 public:
  /// Collective. SharedError, a DataError, where rank 0 cannot write there.
  FolderMark(const Launch& launch, const std::filesystem::path& folder);
  ~FolderMark();
  FolderMark(const FolderMark&) = delete;
  FolderMark& operator=(const FolderMark&) = delete;

  /// Whether this rank finds it. A shared file system gets 10 s to show it everywhere; who is told
  /// to stop waits no longer.
  [[nodiscard]] bool appears() const;
  /// Why this rank may not write there: "Permission denied"; empty where it may. One rank of each
  /// host makes a file: thousands of new ones in one folder take a file system seconds. The others,
  /// whose mounts may be their own, ask.
  [[nodiscard]] std::string refused() const;

 private:
  const Launch& launch_;
  const std::string text_;
  const std::filesystem::path path_;
};

}  // namespace trireme
