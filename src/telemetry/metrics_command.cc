#include "telemetry/metrics_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <ctime>
#include <sstream>
#include <utility>

#include "base/error.h"
#include "base/log.h"

extern char** environ;

namespace trireme {

namespace {

using Clock = std::chrono::steady_clock;

/// write(2) to a pipe without a reader, without the signal that ends a process.
ssize_t write_quietly(int descriptor, const char* data, std::size_t size) {
  sigset_t pipe, before;
  sigemptyset(&pipe);
  sigaddset(&pipe, SIGPIPE);
  pthread_sigmask(SIG_BLOCK, &pipe, &before);
  const ssize_t count = ::write(descriptor, data, size);
  const int code = errno;
  if (count < 0 && code == EPIPE && sigismember(&before, SIGPIPE) == 0) {
    const timespec now{};
    while (::sigtimedwait(&pipe, nullptr, &now) < 0 && errno == EINTR) {
    }
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  errno = code;
  return count;
}

/// What a spawned program is given, destroyed at the end.
class SpawnSetup {
 public:
  explicit SpawnSetup(int input) {
    posix_spawn_file_actions_init(&actions_);
    posix_spawn_file_actions_adddup2(&actions_, input, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions_, STDERR_FILENO, STDOUT_FILENO);
#if defined(__GLIBC__) && __GLIBC_PREREQ(2, 34)
    posix_spawn_file_actions_addclosefrom_np(&actions_, STDERR_FILENO + 1);
#endif
    posix_spawnattr_init(&attributes_);
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_setsigmask(&attributes_, &none);
    posix_spawnattr_setsigdefault(&attributes_, &all);
    posix_spawnattr_setpgroup(&attributes_, 0);
    posix_spawnattr_setflags(
        &attributes_, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETPGROUP);
  }
  ~SpawnSetup() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }
  SpawnSetup(const SpawnSetup&) = delete;
  SpawnSetup& operator=(const SpawnSetup&) = delete;

  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
};

bool may_run(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored) && ::access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::filesystem::path find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (may_run(name)) return name;
    throw ConfigError(
        "log.command: {}: is no program that may be run. Mend the path, or make the file "
        "executable",
        name);
  }
  const char* path = std::getenv("PATH");
  std::istringstream folders(path == nullptr ? "" : path);
  for (std::string folder; std::getline(folders, folder, ':');) {
    const std::filesystem::path file = std::filesystem::path(folder.empty() ? "." : folder) / name;
    if (!name.empty() && may_run(file)) return file;
  }
  throw ConfigError(
      "log.command: \"{}\": no such program in PATH. Install it, give its path, or leave "
      "log.command out",
      name);
}

MetricsCommand::MetricsCommand(std::vector<std::string> argv) : argv_(std::move(argv)) {
  expect(!argv_.empty(), "a command without a program");
  const std::string program = find_program(argv_[0]).string();
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0)
    throw EnvironmentError("log.command: cannot make a pipe: {}", errno_text(errno));
  const FileDescriptor input(ends[0]);
  pipe_ = FileDescriptor(ends[1]);
  ::fcntl(pipe_.get(), F_SETFL, O_NONBLOCK);
  std::vector<char*> arguments;
  for (std::string& argument : argv_) arguments.push_back(argument.data());
  arguments.push_back(nullptr);
  const SpawnSetup setup(input.get());
  const int code = ::posix_spawn(&process_, program.c_str(), &setup.actions_, &setup.attributes_,
                                 arguments.data(), environ);
  if (code != 0) {
    process_ = -1;
    throw ConfigError("log.command: {}: cannot be started: {}", program, errno_text(code));
  }
}

MetricsCommand::~MetricsCommand() { close(std::chrono::milliseconds(0)); }

void MetricsCommand::send(std::string_view line) noexcept {
  if (pipe_.get() < 0) return;
  try {
    if (pending_.size() - written_ + line.size() > kPendingBytesMax) {
      if (dropped_++ == 0) {
        log_warning(
            "log.command: {} takes no more lines and is {} of them behind: further ones are "
            "dropped until it reads on (metrics.jsonl has all; training goes on)",
            argv_[0], std::count(pending_.begin(), pending_.end(), '\n'));
      }
    } else {
      pending_ += line;
    }
  } catch (const std::exception&) {  // no memory for it
    ++dropped_;
  }
  push();
}

void MetricsCommand::push() noexcept {
  while (pipe_.get() >= 0 && written_ < pending_.size()) {
    const ssize_t count =
        write_quietly(pipe_.get(), pending_.data() + written_, pending_.size() - written_);
    if (count >= 0) {
      written_ += static_cast<std::size_t>(count);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return give_up();
    }
  }
  // Behind many small writes, so that not each of them moves all of the rest.
  if (written_ == pending_.size() || written_ > (std::size_t{1} << 20)) {
    pending_.erase(0, written_);
    written_ = 0;
  }
}

void MetricsCommand::give_up() noexcept {
  pipe_ = FileDescriptor();
  log_warning("log.command: {} reads no more: it gets no further lines (training goes on)",
              argv_[0]);
  has_ended();
}

bool MetricsCommand::has_ended() noexcept {
  if (process_ < 0) return true;
  int status = 0;
  const pid_t ended = ::waitpid(process_, &status, WNOHANG);
  if (ended == 0 || (ended < 0 && errno == EINTR)) return false;
  process_ = -1;
  if (ended < 0) return true;
  if (WIFSIGNALED(status))
    log_warning("log.command: {} was ended by signal {}", argv_[0], WTERMSIG(status));
  if (WIFEXITED(status) && WEXITSTATUS(status) != 0)
    log_warning("log.command: {} ended with exit code {}", argv_[0], WEXITSTATUS(status));
  return true;
}

void MetricsCommand::close(std::chrono::milliseconds patience) noexcept {
  if (std::exchange(closed_, true)) return;
  push();
  for (const auto end = Clock::now() + patience;
       pipe_.get() >= 0 && written_ < pending_.size() && Clock::now() < end; push()) {
    pollfd ready{pipe_.get(), POLLOUT, 0};
    ::poll(&ready, 1, 50);
  }
  if (pipe_.get() >= 0 && written_ < pending_.size()) {
    log_warning("log.command: {} has not taken the last {} bytes: they are lost to it", argv_[0],
                pending_.size() - written_);
  }
  if (dropped_ > 0) log_warning("log.command: {} lines were dropped for {}", dropped_, argv_[0]);
  pipe_ = FileDescriptor();
  for (const auto end = Clock::now() + patience; !has_ended();) {
    if (Clock::now() >= end) {
      if (patience.count() > 0)
        log_warning("log.command: {} is not done yet (process {}): it goes on by itself", argv_[0],
                    process_);
      return;
    }
    const timespec pause{0, 10'000'000};
    ::nanosleep(&pause, nullptr);
  }
}

}  // namespace trireme
