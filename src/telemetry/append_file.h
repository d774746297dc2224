#pragma once
// A log file that never ends the run it reports on: a failed write is warned of once, what was
// pending is tried again at the next flush, and the file never keeps half a record.

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/file.h"

namespace trireme {

class AppendFile {
 public:
  /// Pending bytes beyond this are given up, oldest first, once writing has failed.
  static constexpr std::size_t kPendingBytesMax = std::size_t{64} << 20;

  /// Opens for appending, or creates. Throws DataError: before step 0 a run may be refused.
  explicit AppendFile(const std::filesystem::path& path);
  /// Flushes; a failure is warned of as in `flush`.
  ~AppendFile();
  AppendFile(const AppendFile&) = delete;
  AppendFile& operator=(const AppendFile&) = delete;

  /// Adds one whole record to what is pending. No I/O.
  void append(std::string_view record);
  /// Hands what is pending to the operating system. False where that failed; never throws.
  bool flush() noexcept;
  /// `flush`, then to the disk.
  bool sync() noexcept;
  /// To the disk, what earlier flushes handed over. Any thread, any time; a failure is warned of.
  bool sync_flushed() const noexcept;

  [[nodiscard]] std::int64_t failed_flushes() const noexcept { return failed_flushes_; }
  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  bool fail(const std::string& reason) noexcept;
  void give_up_oldest();

  std::filesystem::path path_;
  FileDescriptor file_;
  std::string pending_;
  std::vector<std::size_t> record_bytes_;  // of each pending record
  std::int64_t failed_flushes_ = 0;
};

}  // namespace trireme
