#include "telemetry/append_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <exception>

#include "base/error.h"
#include "base/log.h"

namespace trireme {

AppendFile::AppendFile(const std::filesystem::path& path)
    : path_(path), file_(open_file(path, O_WRONLY | O_CREAT | O_APPEND)) {}

AppendFile::~AppendFile() { flush(); }

void AppendFile::append(std::string_view record) {
  pending_ += record;
  record_bytes_.push_back(record.size());
  if (failed_flushes_ > 0 && pending_.size() > kPendingBytesMax) give_up_oldest();
}

bool AppendFile::flush() noexcept {
  if (pending_.empty()) return true;
  const off_t size_before = ::lseek(file_.get(), 0, SEEK_END);
  try {
    write_all(file_.get(), pending_, path_);
  } catch (const std::exception& fault) {
    // Part of a record may be in the file; take it out again, or the next one would be glued to it.
    if (size_before >= 0 && ::ftruncate(file_.get(), size_before) != 0)
      return fail(errno_text(errno));
    return fail(fault.what());
  }
  pending_.clear();
  record_bytes_.clear();
  return true;
}

bool AppendFile::sync() noexcept {
  if (!flush()) return false;
  return ::fsync(file_.get()) == 0 || fail(errno_text(errno));
}

bool AppendFile::sync_flushed() const noexcept {
  if (::fsync(file_.get()) == 0) return true;
  log_warning("{}: cannot be made durable: {} (training goes on)", path_.string(),
              errno_text(errno));
  return false;
}

bool AppendFile::fail(const std::string& reason) noexcept {
  if (failed_flushes_++ == 0) {
    log_warning(
        "{} (training goes on; what is missing in {} is written as soon as that works again)",
        reason, path_.filename().string());
  }
  return false;
}

void AppendFile::give_up_oldest() {
  std::size_t bytes = 0, records = 0;
  while (records < record_bytes_.size() && pending_.size() - bytes > kPendingBytesMax / 2) {
    bytes += record_bytes_[records++];
  }
  pending_.erase(0, bytes);
  record_bytes_.erase(record_bytes_.begin(),
                      record_bytes_.begin() + static_cast<std::ptrdiff_t>(records));
}

}  // namespace trireme
