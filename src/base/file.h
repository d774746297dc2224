#pragma once
// Files as the rest of the program wants them: opened or refused with path and reason, mapped
// read-only, written so that a reader sees the old content or the new, never a part.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/unique_handle.h"

namespace trireme {

/// Links are followed. False where it cannot be found out, too: a name may be too long to ask for.
bool is_there(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);

struct FileDescriptorTraits {
  using Raw = int;
  static Raw null() noexcept { return -1; }
  static void destroy(Raw descriptor) noexcept;
};
using FileDescriptor = UniqueHandle<FileDescriptorTraits>;

/// Throws DataError with path and reason. `flags` as open(2); O_CLOEXEC is added.
FileDescriptor open_file(const std::filesystem::path& path, int flags, unsigned mode = 0644);

struct RegularFile {
  FileDescriptor descriptor;
  std::uint64_t bytes = 0;
};
/// A file for reading and its size. DataError also for folders, devices, pipes: never waits.
RegularFile open_regular_file(const std::filesystem::path& path);

/// The whole file. Throws DataError (missing, unreadable, larger than `bytes_max`).
std::string read_file(const std::filesystem::path& path,
                      std::size_t bytes_max = std::size_t{1} << 30);

/// Writes every byte or throws DataError; retries interrupted and short writes.
void write_all(int descriptor, std::string_view bytes, const std::filesystem::path& path);

/// Temporary file in the same folder, fsync, rename. Throws DataError; the old file then stands.
void write_file_atomically(const std::filesystem::path& path, std::string_view content);

/// fsync of an existing file or folder. Throws DataError.
void sync_path(const std::filesystem::path& path);

/// A file mapped read-only for as long as the object lives. Empty files map to an empty span. Where
/// somebody cuts the file while it is mapped, or its disk fails, the system answers an access with
/// SIGBUS: the first MappedFile installs a handler that names the file and exits with 74.
class MappedFile {
 public:
  MappedFile() = default;
  /// Throws DataError.
  explicit MappedFile(const std::filesystem::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }

 private:
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace trireme
