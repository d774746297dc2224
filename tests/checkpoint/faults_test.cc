// Saving while the process dies at any system call, while the system refuses any of them, and on a
// disk that is full: what was saved before stays, and nothing that is not whole appears.

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/user.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <map>

#include "checkpoint/async_writer.h"
#include "checkpoint/hdf5_file.h"
#include "checkpoint/reader.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"
#include "traced_child.h"

namespace trireme {

#if defined(__linux__) && defined(__x86_64__)
namespace {

/// Not a terminal, a pipe or a socket (the sanitizers' runtime writes into pipes of its own).
bool is_file(pid_t process, unsigned long long descriptor) {
  std::error_code code;
  const auto target =
      std::filesystem::read_symlink(fmt::format("/proc/{}/fd/{}", process, descriptor), code);
  return !code && target.is_absolute() && descriptor > STDERR_FILENO;
}

/// Calls that change what is on the disk.
bool counted(pid_t process, const user_regs_struct& registers) {
  switch (registers.orig_rax) {
    case SYS_write:
      return is_file(process, registers.rdi);
    case SYS_pwrite64:
    case SYS_fsync:
    case SYS_ftruncate:
    case SYS_mkdir:
    case SYS_rename:
    case SYS_renameat2:
    case SYS_unlink:
    case SYS_unlinkat:
    case SYS_rmdir:
      return true;
    case SYS_openat:
      return (registers.rdx & O_CREAT) != 0;
    case SYS_open:
      return (registers.rsi & O_CREAT) != 0;
    default:
      return false;
  }
}

/// Removing is not refused: a disk that is full or failing lets go of names.
bool can_fail(const user_regs_struct& registers) {
  switch (registers.orig_rax) {
    case SYS_unlink:
    case SYS_unlinkat:
    case SYS_rmdir:
      return false;
    default:
      return true;
  }
}

/// A save has two threads; the calls of both are counted together, and only one of them makes any
/// at a time.
class Tracer {
 public:
  Tracer(pid_t child, const Fault& fault) : child_(child), fault_(fault) {}

  ChildEnd run() {
    ::ptrace(PTRACE_SETOPTIONS, child_, nullptr,
             PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL | PTRACE_O_TRACECLONE);
    threads_[child_] = {};
    ::ptrace(PTRACE_SYSCALL, child_, nullptr, 0);
    for (;;) {
      int status = 0;
      const pid_t thread = ::waitpid(-1, &status, __WALL);
      if (WIFEXITED(status) || WIFSIGNALED(status)) {
        if (thread != child_) continue;
        if (WIFEXITED(status)) end_.exit_code = WEXITSTATUS(status);
        if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
        return end_;
      }
      ::ptrace(PTRACE_SYSCALL, thread, nullptr, signal_for(thread, status));
    }
  }

 private:
  struct Thread {
    bool entering = true, failing = false;
  };

  /// What the stopped thread is to get when it goes on.
  int signal_for(pid_t thread, int status) {
    const auto [known, is_new] = threads_.try_emplace(thread);
    const int signal = WSTOPSIG(status);
    if (signal == (SIGTRAP | 0x80)) {
      at_call(thread, known->second);
      return 0;
    }
    const bool first_stop = is_new && signal == SIGSTOP;
    return first_stop || signal == SIGTRAP ? 0 : signal;
  }

  void at_call(pid_t thread, Thread& state) {
    user_regs_struct registers{};
    ::ptrace(PTRACE_GETREGS, thread, nullptr, &registers);
    if (!state.entering && state.failing) {
      registers.rax = static_cast<unsigned long long>(-fault_.error);
      ::ptrace(PTRACE_SETREGS, thread, nullptr, &registers);
    } else if (state.entering && counted(thread, registers)) {
      const int number = end_.calls++;
      if (fault_.kind == Fault::Kind::kKill && number == fault_.at) ::kill(child_, SIGKILL);
      state.failing = can_fail(registers) &&
                      ((fault_.kind == Fault::Kind::kFailOnce && number == fault_.at) ||
                       (fault_.kind == Fault::Kind::kFailFromHere && number >= fault_.at));
      if (state.failing) {
        registers.orig_rax = static_cast<unsigned long long>(-1);
        ::ptrace(PTRACE_SETREGS, thread, nullptr, &registers);
      }
    } else if (state.entering) {
      state.failing = false;
    }
    state.entering = !state.entering;
  }

  pid_t child_;
  Fault fault_;
  ChildEnd end_;
  std::map<pid_t, Thread> threads_;
};

}  // namespace

ChildEnd run_traced(const std::function<int()>& work, const Fault& fault) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::ptrace(PTRACE_TRACEME, 0, nullptr, nullptr) != 0) ::_exit(125);
    ::raise(SIGSTOP);
    ::_exit(work());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) return {.refused = true};
  return Tracer(child, fault).run();
}
#else
ChildEnd run_traced(const std::function<int()>&, const Fault&) { return {.refused = true}; }
#endif

namespace {

constexpr int kSaved = 0, kNotSaved = 10, kSecondSaveFailed = 11;

/// Hundreds of saves, each with its fsyncs: in memory where the machine has such a folder.
class MemoryFolder {
 public:
  MemoryFolder() {
    if (const char* before = std::getenv("TMPDIR")) before_ = before;
    if (::access("/dev/shm", W_OK) == 0) ::setenv("TMPDIR", "/dev/shm", 1);
  }
  ~MemoryFolder() {
    if (before_.empty()) {
      ::unsetenv("TMPDIR");
    } else {
      ::setenv("TMPDIR", before_.c_str(), 1);
    }
  }
  MemoryFolder(const MemoryFolder&) = delete;
  MemoryFolder& operator=(const MemoryFolder&) = delete;

 private:
  std::string before_;
};

class SavingUnderFaults : public testing::Test {
 protected:
  void SetUp() override {
    tensors_.add_whole("parameters/a.weight", Shape{40, 50});
    tensors_.add_whole("parameters/b.weight", Shape{7});
    tensors_.add_whole("parameters/scale", Shape{});
    tensors_.add_whole("optimizer/a.weight/exp_avg", Shape{40, 50});
    make_first();
  }
  void make_first() {
    std::filesystem::remove_all(directory_);
    tensors_.fill(1);
    ASSERT_EQ(save_checkpoint(request_of(1), *world_).error, "");
    tensors_.fill(2);
  }
  SaveRequest request_of(std::int64_t step) {
    SaveRequest request = request_for(directory_, step, tensors_.state());
    request.retention = {1, 0};
    request.files.push_back({"tokenizer.json", "{}"});
    return request;
  }
  int save_as(std::int64_t step) {
    return save_checkpoint(request_of(step), *world_).saved() ? kSaved : kNotSaved;
  }

  /// Every checkpoint that can be seen is whole and holds the state of its step. Returns the newest
  /// step.
  std::int64_t check_what_is_there(std::int64_t step_of_second, const std::string& where) {
    const auto found = list_checkpoints(directory_);
    EXPECT_FALSE(found.empty()) << where << ": the checkpoint of before is lost";
    TestState loaded;
    for (const StateTensor& tensor : tensors_.state().tensors)
      loaded.add_whole(tensor.name, tensor.global_shape);
    for (const CheckpointInfo& info : found) {
      EXPECT_EQ(info.problem, "") << where;
      EXPECT_TRUE(verify_checkpoint(info.path).empty()) << where;
      load_state(info.path, loaded.state(), *world_);
      const bool second = loaded.first_difference(2).empty(),
                 first = loaded.first_difference(1).empty();
      EXPECT_TRUE(step_of_second == 1 ? first || second : info.step == 1 ? first : second) << where;
    }
    return found.empty() ? -1 : found.front().step;
  }

  MemoryFolder in_memory_;
  TemporaryDirectory temporary_;
  std::filesystem::path directory_ = temporary_ / "checkpoints";
  std::unique_ptr<Communicator> world_ = make_self_communicator();
  TestState tensors_;
};

TEST_F(SavingUnderFaults, death_at_any_system_call_loses_nothing_and_shows_nothing_half_done) {
  for (const std::int64_t step : {2, 1}) {  // a new step, and the same one once more
    const ChildEnd whole_save = run_traced([&] { return save_as(step); }, {});
    if (whole_save.refused) GTEST_SKIP() << "tracing is not permitted here";
    ASSERT_EQ(whole_save.exit_code, kSaved);
    ASSERT_GT(whole_save.calls, 20);
    for (int at = 0; at < whole_save.calls; ++at) {
      make_first();
      const ChildEnd end = run_traced([&] { return save_as(step); }, {Fault::Kind::kKill, at});
      const std::string where =
          fmt::format("step {} killed at call {} of {}", step, at, whole_save.calls);
      ASSERT_EQ(end.signal, SIGKILL) << where;
      check_what_is_there(step, where);
      EXPECT_EQ(remove_leftovers(directory_), "");
      for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
        EXPECT_GE(step_of_folder_name(entry.path().filename().string()), 0)
            << where << ": " << entry.path();
      }
      EXPECT_EQ(save_as(3), kSaved) << where;
    }
  }
}

TEST_F(SavingUnderFaults, an_error_at_any_system_call_is_reported_and_the_next_save_works) {
  const ChildEnd whole_save = run_traced([&] { return save_as(2); }, {});
  if (whole_save.refused) GTEST_SKIP() << "tracing is not permitted here";
  int failed = 0;
  for (const int error : {ENOSPC, EIO}) {
    for (int at = 0; at < whole_save.calls; ++at) {
      make_first();
      const auto work = [&] {
        const int first = save_as(2);
        if (save_as(3) != kSaved) return kSecondSaveFailed;
        return first;
      };
      const ChildEnd end = run_traced(work, {Fault::Kind::kFailOnce, at, error});
      const std::string where =
          fmt::format("error {} at call {} of {}", error, at, whole_save.calls);
      ASSERT_EQ(end.signal, 0) << where;
      EXPECT_TRUE(end.exit_code == kSaved || end.exit_code == kNotSaved)
          << where << ": exit " << end.exit_code;
      failed += end.exit_code == kNotSaved;
      EXPECT_EQ(check_what_is_there(2, where), 3);
    }
  }
  EXPECT_GT(failed, whole_save.calls) << "most calls matter";
}

TEST_F(SavingUnderFaults,
       a_system_that_refuses_everything_from_some_call_on_leaves_the_old_checkpoint) {
  const ChildEnd whole_save = run_traced([&] { return save_as(2); }, {});
  if (whole_save.refused) GTEST_SKIP() << "tracing is not permitted here";
  for (int at = 0; at < whole_save.calls; ++at) {
    make_first();
    const ChildEnd end =
        run_traced([&] { return save_as(2); }, {Fault::Kind::kFailFromHere, at, ENOSPC});
    const std::string where = fmt::format("full from call {} of {}", at, whole_save.calls);
    ASSERT_EQ(end.signal, 0) << where;
    const std::int64_t newest = check_what_is_there(2, where);
    EXPECT_TRUE(newest == 2 || end.exit_code == kNotSaved) << where << ": exit " << end.exit_code;
  }
}

/// Runs `work` in a child of its own; its exit code, or 1000 + the signal that ended it.
int run_apart(const std::function<int()>& work) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(work());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::size_t open_descriptors() {
  std::size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd"))
    ++count;
  return count;
}

TEST_F(SavingUnderFaults, a_file_size_limit_fails_every_save_without_a_death_or_a_leak) {
  for (const rlim_t limit : {0, 100, 3000, 9000, 12000, 16000}) {
    const int code = run_apart([&] {
      initialise_hdf5();
      rlimit old{};
      ::getrlimit(RLIMIT_FSIZE, &old);
      const rlimit low{limit, old.rlim_max};
      ::setrlimit(RLIMIT_FSIZE, &low);
      const std::size_t before = open_descriptors();
      for (int i = 0; i < 20; ++i) {
        const std::string error = save_checkpoint(request_of(2), *world_).error;
        if (error.find("File too large") == std::string::npos) return kSaved + 1;
      }
      if (open_descriptors() != before) return kSaved + 2;
      ::setrlimit(RLIMIT_FSIZE, &old);
      return save_as(2);
    });
    EXPECT_EQ(code, kSaved) << "limit " << limit;
    EXPECT_EQ(check_what_is_there(2, fmt::format("limit {}", limit)), 2);
  }
}

TEST_F(SavingUnderFaults, a_small_disk_that_fills_up_during_the_save_keeps_the_old_checkpoint) {
  const std::filesystem::path disk = temporary_ / "disk";
  std::filesystem::create_directory(disk);
  if (::mount("tmpfs", disk.c_str(), "tmpfs", 0, "size=1m") != 0)
    GTEST_SKIP() << "mounting is not permitted here";
  directory_ = disk / "checkpoints";
  make_first();
  // The payload passes the check of free space; what the format adds does not fit.
  TestState large;
  large.add_whole("parameters/large", Shape{195000});
  for (int i = 0; i < 500; ++i) large.add_whole(fmt::format("parameters/small.{}", i), Shape{2});
  large.fill(2);
  SaveRequest request = request_of(2);
  request.state = &large.state();
  const SaveResult saved = save_checkpoint(request, *world_);
  EXPECT_NE(saved.error.find("No space left on device"), std::string::npos) << saved.error;
  EXPECT_EQ(check_what_is_there(2, "full disk"), 1);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(directory_), {}), 1);
  EXPECT_EQ(save_as(2), kSaved);
  EXPECT_EQ(check_what_is_there(2, "afterwards"), 2);
  EXPECT_EQ(::umount(disk.c_str()), 0);
}

}  // namespace
}  // namespace trireme
