#pragma once
// One run at a time in a run.directory: the file run.directory/lock names its holder, who touches
// it every 5 s. A lock is dead, and taken over with a line that says so,
//   where it is of this host and no process has its pid and start time (or the host was booted
//   since), where it is of this Slurm job before a requeue, where it is of another host (or another
//   container) and was not touched for 60 s, on the file server's clock.

#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <mutex>
#include <string>
#include <thread>

#include "base/file.h"

namespace trireme {

struct LockHolder {
  std::string host;
  std::string boot;           ///< changes when the host boots
  std::string pid_namespace;  ///< pids of two containers do not compare
  std::string job;            ///< SLURM_JOB_ID, "" outside of Slurm
  std::int64_t restarts = 0;  ///< how often Slurm requeued the job
  std::int64_t pid = 0;
  std::int64_t start_ticks =
      0;  ///< when the process started: tells it from a later one with its pid

  static LockHolder this_process();
  /// The content of the lock file.
  [[nodiscard]] std::string text() const;
  /// What `text` made; anything else gives a holder on no known host.
  static LockHolder parse(const std::string& text);
  /// Whether `text` is a lock: it names host and pid, or is cut off. Anything else a user wrote.
  static bool has_form(const std::string& text);
  /// "host a, pid 12, Slurm job 7"
  [[nodiscard]] std::string name() const;
};

/// Start time of a process in clock ticks since boot; -1 where there is none, or only its zombie.
std::int64_t process_start_ticks(std::int64_t pid);

/// Of this process, in seconds to the hundredth; 0 where the system does not say.
double process_age_seconds();

/// Whether something stands at `path`, be it a folder or a link, that no run made as its lock.
bool is_foreign_lock(const std::filesystem::path& path);

struct LockVerdict {
  bool dead = false;
  std::string reason;
};
/// Whether a lock touched `age_seconds` ago still holds. `start_ticks_of` as process_start_ticks.
LockVerdict judge_lock(const LockHolder& holder, const LockHolder& self, double age_seconds,
                       const std::function<std::int64_t(std::int64_t)>& start_ticks_of);

class RunLock {
 public:
  static constexpr double kForeignSeconds = 60;
  static constexpr const char* kFileName = "lock";
  /// Makes the directory where it is missing. Throws EnvironmentError where a live lock stands
  /// (host, pid, job), ConfigError where it is_foreign_lock, DataError where the file system
  /// refuses. `on_lost`, from another thread: somebody else took the lock over (this process was
  /// suspended for a minute, or the file was replaced), and both would write.
  explicit RunLock(const std::filesystem::path& directory,
                   std::function<void(const std::string&)> on_lost = {});
  /// Removes the lock where it is still this one.
  ~RunLock();
  RunLock(const RunLock&) = delete;
  RunLock& operator=(const RunLock&) = delete;

  /// Whether the file is still this lock; refreshes its time. What the thread does every 5 s.
  bool touch();

 private:
  void acquire(const std::filesystem::path& mine);
  /// For file systems without hard links; false with errno as open(2).
  bool create_without_link();
  void take_over(const std::filesystem::path& aside, std::uint64_t inode);
  void keep();

  std::filesystem::path path_;
  LockHolder self_;
  FileDescriptor file_;  // open for life, so that its inode number stays its own
  std::uint64_t inode_ = 0;
  std::function<void(const std::string&)> on_lost_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace trireme
