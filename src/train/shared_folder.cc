#include "train/shared_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <string_view>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/stop_flag.h"
#include "checkpoint/retention.h"

namespace trireme {

namespace {

constexpr std::string_view kPrefix = ".trireme-seen-";

/// What processes left that were killed while they looked.
void remove_marks(const std::filesystem::path& directory) {
  std::error_code fault;
  for (std::filesystem::directory_iterator at(directory, fault), end; !fault && at != end;
       at.increment(fault)) {
    if (at->path().filename().string().starts_with(kPrefix)) ::unlink(at->path().c_str());
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
    remove_marks(folder);
    const FileDescriptor file = open_file(path_, O_WRONLY | O_CREAT | O_EXCL);
    try {
      write_all(file.get(), text_, path_);
    } catch (const Error&) {  // a full disk has room for the name
      ::unlink(path_.c_str());
      throw;
    }
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
