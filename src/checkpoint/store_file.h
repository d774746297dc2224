#pragma once
// The HDF5 files of a checkpoint read as plain bytes. The library writes them and h5py reads them,
// but we never let the library parse one: it crashes on hostile files, by many published faults of
// every version. The manifest says where the bytes of each shard lie and holds their hash, and a
// hash of all that lies between them, the frame: so every byte of a file is known.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "base/file.h"

namespace trireme {

/// Bytes [begin, begin + size) of a file.
struct Extent {
  std::int64_t begin = 0, size = 0;
};

/// Throws DataError naming the file: missing, no regular file, refused by the system.
class StoreFile {
 public:
  explicit StoreFile(std::filesystem::path path);
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Fills `out` with the bytes from `begin` on. Throws DataError where the file ends before.
  void read(std::int64_t begin, std::span<std::byte> out) const;
  /// XXH3-128 of all bytes outside of `extents`, which may come in any order and overlap.
  [[nodiscard]] std::string frame_hash(std::vector<Extent> extents) const;

 private:
  std::filesystem::path path_;
  FileDescriptor descriptor_;
  std::int64_t bytes_ = 0;
};

}  // namespace trireme
