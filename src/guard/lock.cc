#include "guard/lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <chrono>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>

#include "base/error.h"
#include "base/file.h"
#include "base/json.h"
#include "base/log.h"
#include "base/signal_free_thread.h"
#include "guard/process_stat.h"

namespace trireme {

namespace {

std::string first_line(const char* path) {
  std::string line;
  std::getline(std::ifstream(path), line);
  return line;
}

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

std::optional<struct stat> status_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) return std::nullopt;
  return status;
}

std::optional<struct stat> status_of(int descriptor) {
  struct stat status {};
  if (::fstat(descriptor, &status) != 0) return std::nullopt;
  return status;
}

/// The first 4 KiB: more than a lock has.
std::string content_of(int descriptor) {
  std::string content(4096, '\0');
  const ssize_t count = ::pread(descriptor, content.data(), content.size(), 0);
  content.resize(count < 0 ? 0 : static_cast<std::size_t>(count));
  return content;
}

/// What stands where a lock would.
struct Found {
  FileDescriptor file;  ///< where it could be opened
  int fault = 0;        ///< why it could not
  std::string content;
  bool foreign = false;  ///< no run made it as its lock
};

Found look_at(const std::filesystem::path& path) {
  Found found;
  std::error_code ignored;
  const auto status = std::filesystem::symlink_status(path, ignored);
  found.foreign = std::filesystem::exists(status) && !std::filesystem::is_regular_file(status);
  if (found.foreign) return found;
  found.file = FileDescriptor(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  found.fault = found.file ? 0 : errno;
  if (!found.file) return found;  // one that vanished, or may not be read: reported where taken
  found.content = content_of(found.file.get());
  found.foreign = !LockHolder::has_form(found.content);
  return found;
}

double seconds_of(const struct timespec& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

std::string text_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_string() ? value->as_string() : "";
}

std::int64_t integer_of(const Json& object, std::string_view key) {
  const Json* value = object.find(key);
  return value != nullptr && value->is_integer() ? value->as_integer() : -1;
}

}  // namespace

LockHolder LockHolder::this_process() {
  LockHolder self;
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  self.host = name.data();
  self.boot = first_line("/proc/sys/kernel/random/boot_id");
  std::array<char, 64> link{};
  if (::readlink("/proc/self/ns/pid", link.data(), link.size() - 1) > 0)
    self.pid_namespace = link.data();
  self.job = variable("SLURM_JOB_ID");
  const std::string restarts = variable("SLURM_RESTART_COUNT");
  std::from_chars(restarts.data(), restarts.data() + restarts.size(), self.restarts);
  self.pid = ::getpid();
  self.start_ticks = process_start_ticks(self.pid);
  return self;
}

std::string LockHolder::text() const {
  Json object = Json::object();
  object["host"] = host;
  object["pid"] = pid;
  object["job"] = job;
  object["restarts"] = restarts;
  object["start_ticks"] = start_ticks;
  object["boot"] = boot;
  object["pid_namespace"] = pid_namespace;
  return object.dump() + "\n";
}

bool LockHolder::has_form(const std::string& text) {
  const std::string whole = LockHolder().text();
  const std::string_view begin = std::string_view(whole).substr(0, whole.find(':'));
  if (begin.substr(0, text.size()) == text) return true;
  const LockHolder holder = parse(text);
  const bool cut_off = !text.ends_with('\n') && text.starts_with(begin);
  return cut_off || (!holder.host.empty() && holder.pid > 0);
}

LockHolder LockHolder::parse(const std::string& text) {
  LockHolder holder;
  try {
    const Json object = parse_json(text, "lock");
    holder.host = text_of(object, "host");
    holder.boot = text_of(object, "boot");
    holder.pid_namespace = text_of(object, "pid_namespace");
    holder.job = text_of(object, "job");
    holder.restarts = integer_of(object, "restarts");
    holder.pid = integer_of(object, "pid");
    holder.start_ticks = integer_of(object, "start_ticks");
  } catch (const Error&) {
    return {};
  }
  return holder;
}

std::string LockHolder::name() const {
  if (host.empty()) return "an unknown holder";
  return fmt::format("host {}, pid {}, {}", host, pid,
                     job.empty() ? "no Slurm job" : "Slurm job " + job);
}

std::int64_t process_start_ticks(std::int64_t pid) {
  std::istringstream fields(process_stat(pid));
  std::string field;
  fields >> field;
  if (field == "Z" || field == "X") return -1;
  for (int i = 4; i <= 22; ++i) fields >> field;
  std::int64_t ticks = -1;
  std::from_chars(field.data(), field.data() + field.size(), ticks);
  return ticks;
}

double process_age_seconds() {
  const std::int64_t begin = process_start_ticks(::getpid());
  timespec now{};
  if (begin < 0 || ::clock_gettime(CLOCK_BOOTTIME, &now) != 0) return 0;
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) * 1e-9 -
         static_cast<double>(begin) / static_cast<double>(::sysconf(_SC_CLK_TCK));
}

bool is_foreign_lock(const std::filesystem::path& path) { return look_at(path).foreign; }

LockVerdict judge_lock(const LockHolder& holder, const LockHolder& self, double age_seconds,
                       const std::function<std::int64_t(std::int64_t)>& start_ticks_of) {
  if (!self.job.empty() && holder.job == self.job && holder.restarts >= 0 &&
      holder.restarts < self.restarts) {
    return {true, fmt::format("Slurm requeued job {} since", self.job)};
  }
  if (!holder.host.empty() && holder.host == self.host) {
    if (holder.boot != self.boot) return {true, "this host was booted since"};
    if (holder.pid_namespace == self.pid_namespace) {
      const std::int64_t start_ticks = start_ticks_of(holder.pid);
      if (start_ticks < 0) return {true, "that process is gone"};
      if (start_ticks != holder.start_ticks) return {true, "that pid is another process now"};
      return {};
    }
  }
  if (age_seconds < RunLock::kForeignSeconds) return {};
  return {true, fmt::format("it was not touched for {:.0f} s", age_seconds)};
}

RunLock::RunLock(const std::filesystem::path& directory,
                 std::function<void(const std::string&)> on_lost)
    : path_(directory / kFileName),
      self_(LockHolder::this_process()),
      on_lost_(std::move(on_lost)) {
  std::error_code fault;
  std::filesystem::create_directories(directory, fault);
  if (fault)
    throw DataError("{}: cannot make this folder: {}", directory.string(), fault.message());
  // The file is complete before it becomes the lock, and its time is that of the file server.
  std::filesystem::path mine = path_;
  mine += fmt::format(".{}.{}.tmp", self_.host, self_.pid);
  file_ = open_file(mine, O_RDWR | O_CREAT | O_TRUNC);
  write_all(file_.get(), self_.text(), mine);
  try {
    acquire(mine);
  } catch (...) {
    ::unlink(mine.c_str());
    throw;
  }
  ::unlink(mine.c_str());
  thread_ = signal_free_thread([this] { keep(); });
}

void RunLock::acquire(const std::filesystem::path& mine) {
  // Processes of one host that find a dead lock take turns; between hosts the renaming decides.
  const FileDescriptor folder = open_file(path_.parent_path(), O_RDONLY | O_DIRECTORY);
  ::flock(folder.get(), LOCK_EX);
  const auto my_status = status_of(mine);
  if (!my_status) throw DataError("{}: vanished: {}", mine.string(), errno_text(errno));
  for (int tries = 0; tries < 100; ++tries) {
    if (::link(mine.c_str(), path_.c_str()) == 0) {
      inode_ = my_status->st_ino;
      return;
    }
    if (errno != EEXIST && create_without_link()) return;
    if (errno != EEXIST)
      throw DataError("{}: cannot make the lock: {}", path_.string(), errno_text(errno));
    // Kept open, so that its inode number cannot become another lock's meanwhile.
    const Found held = look_at(path_);
    if (held.foreign) {
      throw ConfigError(
          "{}: is there and is no lock of a run: training would replace it. Move it away, or "
          "choose another run.directory.",
          path_.string());
    }
    if (held.fault == ENOENT) continue;  // just removed
    const auto status = held.file ? status_of(held.file.get()) : std::nullopt;
    if (!status) throw DataError("{}: cannot open: {}", path_.string(), errno_text(held.fault));
    const LockHolder holder = LockHolder::parse(held.content);
    const double age_seconds =
        std::max(0.0, seconds_of(my_status->st_mtim) - seconds_of(status->st_mtim));
    const LockVerdict verdict = judge_lock(holder, self_, age_seconds, process_start_ticks);
    if (!verdict.dead) {
      throw EnvironmentError(
          "{}: another run works in this folder: {}, touched {:.0f} s ago (two runs would "
          "overwrite each other's files). Wait for it, end it (touch {}), or choose another "
          "run.directory.",
          path_.string(), holder.name(), age_seconds, (path_.parent_path() / "stop").string());
    }
    log_warning("{}: taken over from {}: {}", path_.string(), holder.name(), verdict.reason);
    std::filesystem::path aside = mine;
    aside += ".dead";
    take_over(aside, status->st_ino);
  }
  throw EnvironmentError("{}: changes hands all the time (several runs start here). Start one.",
                         path_.string());
}

bool RunLock::create_without_link() {
  FileDescriptor file(::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!file) return false;
  write_all(file.get(), self_.text(), path_);
  inode_ = status_of(file.get())->st_ino;
  file_ = std::move(file);
  return true;
}

void RunLock::take_over(const std::filesystem::path& aside, std::uint64_t inode) {
  if (::rename(path_.c_str(), aside.c_str()) != 0) return;  // another host was faster; look again
  const auto moved = status_of(aside);
  // What was moved may be the fresh lock of another host that was faster: it goes back.
  if (moved && moved->st_ino != inode) static_cast<void>(::link(aside.c_str(), path_.c_str()));
  ::unlink(aside.c_str());
}

bool RunLock::touch() {
  const auto status = status_of(path_);
  if (!status && errno != ENOENT)
    return true;  // the file server is away: nobody else sees the lock either
  if (!status || status->st_ino != inode_) return false;
  ::utimensat(AT_FDCWD, path_.c_str(), nullptr, 0);
  return true;
}

void RunLock::keep() {
  std::unique_lock lock(mutex_);
  while (!wake_.wait_for(lock, std::chrono::seconds(5), [this] { return stop_; })) {
    if (touch()) continue;
    std::string now = "removed";
    try {
      now = "of " + LockHolder::parse(read_file(path_, 1 << 16)).name();
    } catch (const Error&) {
    }
    const std::string what = fmt::format("{}: the lock of this run is {} now", path_.string(), now);
    if (on_lost_) return on_lost_(what);
    return log_warning("{}", what);
  }
}

RunLock::~RunLock() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  thread_.join();
  const auto status = status_of(path_);
  if (status && status->st_ino == inode_) ::unlink(path_.c_str());
}

}  // namespace trireme
