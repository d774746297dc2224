#include "train/shared_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <system_error>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_flag.h"
#include "checkpoint/retention.h"

namespace trireme {

namespace {

constexpr std::string_view kPrefix = ".trireme-seen-";

/// Nobody looks for a mark so long.
constexpr std::chrono::minutes kMarkLives{1};

/// What processes left that were killed while they looked: marks older than `mine`, by the clock of
/// the file system. Younger ones may be those of others that look now.
void remove_old_marks(const std::filesystem::path& mine) {
  std::error_code fault;
  const auto now = std::filesystem::last_write_time(mine, fault);
  for (std::filesystem::directory_iterator at(mine.parent_path(), fault), end; !fault && at != end;
       at.increment(fault)) {
    if (!at->path().filename().string().starts_with(kPrefix)) continue;
    std::error_code gone;
    const auto made = std::filesystem::last_write_time(at->path(), gone);
    if (!gone && now - made > kMarkLives) ::unlink(at->path().c_str());
  }
}

bool holds(const std::filesystem::path& mark, const std::string& text) {
  try {
    return read_file(mark, 4096) == text;
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

FolderMark::FolderMark(const Launch& launch, const std::filesystem::path& folder)
    : launch_(launch),
      text_(launch.job().broadcast_text(launch.job().rank() == 0 ? unique_suffix() : "", 0)),
      path_(folder / (std::string(kPrefix) + text_)) {
  run_together(launch.job(), [&] {
    if (launch.job().rank() != 0) return;
    const FileDescriptor file = open_file(path_, O_WRONLY | O_CREAT | O_EXCL);
    try {
      write_all(file.get(), text_, path_);
    } catch (const Error&) {  // a full disk has room for the name
      ::unlink(path_.c_str());
      throw;
    }
    remove_old_marks(path_);
  });
}

FolderMark::~FolderMark() {
  if (launch_.job().rank() == 0) ::unlink(path_.c_str());
}

bool FolderMark::appears() const {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(10);
  while (!holds(path_, text_)) {
    if (Clock::now() > deadline || stop_signal() != 0) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  return true;
}

std::string FolderMark::refused() const {
  if (launch_.local_rank() != 0) {
    return ::access(path_.parent_path().c_str(), W_OK | X_OK) == 0 ? "" : errno_text(errno);
  }
  std::filesystem::path mine = path_;
  mine += fmt::format("-{}", launch_.job().rank());
  const FileDescriptor file(::open(mine.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return errno_text(errno);
  ::unlink(mine.c_str());
  return "";
}

}  // namespace trireme
