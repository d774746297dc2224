#include "train/run_directory.h"

#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <thread>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"
#include "checkpoint/retention.h"

namespace trireme {

namespace {

constexpr std::string_view kPrefix = ".seen-";

/// What runs left that were killed while they looked.
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

void find_mark(const std::filesystem::path& mark, const std::string& text, const Launch& launch) {
  using Clock = std::chrono::steady_clock;
  const Clock::time_point deadline = Clock::now() + std::chrono::seconds(10);
  while (!holds(mark, text)) {
    if (Clock::now() > deadline) {
      throw EnvironmentError(
          "{}: on host {} this is not the folder that rank 0 works in: a file that rank 0 wrote "
          "there does not appear (a local disk? Each host would keep a part of every checkpoint). "
          "Choose run.directory and checkpoint.directory on a file system that all hosts share.",
          mark.parent_path().string(), launch.host_name());
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

/// One rank of each host makes a file: thousands of new ones in one folder take a file system
/// seconds. The others, whose mounts may be their own, ask.
bool can_write(const std::filesystem::path& mark, const Launch& launch) {
  if (launch.host().rank() != 0) return ::access(mark.parent_path().c_str(), W_OK | X_OK) == 0;
  std::filesystem::path mine = mark;
  mine += fmt::format("-{}", launch.job().rank());
  const FileDescriptor file(::open(mine.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return false;
  ::unlink(mine.c_str());
  return true;
}

void require_writable(const std::filesystem::path& mark, const Launch& launch) {
  if (can_write(mark, launch)) return;
  const std::string why = errno_text(errno);
  throw DataError("{}: host {} cannot write here: {} (every rank writes its part of a checkpoint)",
                  mark.parent_path().string(), launch.host_name(), why);
}

void require_shared_directory(const Launch& launch, const std::filesystem::path& directory) {
  Communicator& job = launch.job();
  if (job.size() == 1) return;
  const bool leader = job.rank() == 0;
  const std::string text = job.broadcast_text(leader ? unique_suffix() : "", 0);
  const std::filesystem::path mark = directory / (std::string(kPrefix) + text);
  run_together(job, [&] {
    if (!leader) return;
    remove_marks(directory);
    const FileDescriptor file = open_file(mark, O_WRONLY | O_CREAT | O_EXCL);
    write_all(file.get(), text, mark);
  });
  struct Remove {
    const std::filesystem::path& mark;
    bool leader;
    ~Remove() {
      if (leader) ::unlink(mark.c_str());
    }
  } const remove{mark, leader};
  run_together(job, [&] {
    if (leader) return;
    find_mark(mark, text, launch);
    require_writable(mark, launch);
  });
}

}  // namespace

RunDirectory::RunDirectory(const PreparedRun& prepared, Launch& launch) {
  run_together(launch.job(), [&] {
    if (launch.job().rank() != 0) return;
    lock_ =
        std::make_unique<RunLock>(prepared.config.run.directory, [&launch](const std::string& why) {
          log_any_rank("{}", why);
          launch.abort(static_cast<int>(ExitCode::kEnvironment));
        });
    const std::string left = remove_leftovers(prepared.config.checkpoint_directory());
    if (!left.empty()) log_warning("{}", left);
  });
  require_shared_directory(launch, prepared.config.run.directory);
  const std::filesystem::path checkpoints = prepared.config.checkpoint_directory();
  std::int64_t there = is_there(checkpoints) ? 1 : 0;
  launch.job().broadcast(std::as_writable_bytes(std::span(&there, 1)), 0);
  if (there != 0) require_shared_directory(launch, checkpoints);
}

}  // namespace trireme
