#include "guard/lock.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <fstream>

#include "base/error.h"
#include "base/file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

constexpr auto kNoProcess = [](std::int64_t) -> std::int64_t { return -1; };

/// A live process of this host that holds the lock, as seen by another one.
LockHolder other_process() {
  LockHolder holder = LockHolder::this_process();
  holder.pid = ::getppid();
  holder.start_ticks = process_start_ticks(holder.pid);
  return holder;
}

void write_lock(const TemporaryDirectory& directory, const LockHolder& holder,
                std::int64_t age_seconds = 0) {
  const std::filesystem::path path = directory.write("lock", holder.text());
  const std::int64_t now = ::time(nullptr);
  const std::array<timespec, 2> times{timespec{now - age_seconds, 0},
                                      timespec{now - age_seconds, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, path.c_str(), times.data(), 0), 0);
}

std::string refusal(const TemporaryDirectory& directory) {
  try {
    const RunLock lock(directory.path());
  } catch (const EnvironmentError& error) {
    return error.what();
  }
  return "";
}

std::size_t files_in(const TemporaryDirectory& directory) {
  return static_cast<std::size_t>(
      std::distance(std::filesystem::directory_iterator(directory.path()),
                    std::filesystem::directory_iterator()));
}

TEST(Process, knows_its_age) {
  const double before = process_age_seconds();
  EXPECT_GT(before, -0.02) << "ticks are of a hundredth";
  EXPECT_LT(before, 3600);
  ::usleep(30000);
  EXPECT_GT(process_age_seconds(), before + 0.025);
}

TEST(RunLock, stands_while_held_and_is_gone_afterwards) {
  const TemporaryDirectory directory;
  {
    RunLock lock(directory / "run");
    const LockHolder holder = LockHolder::parse(read_file(directory / "run" / "lock"));
    EXPECT_EQ(holder.pid, ::getpid());
    EXPECT_EQ(holder.start_ticks, process_start_ticks(::getpid()));
    EXPECT_TRUE(lock.touch());
  }
  EXPECT_TRUE(std::filesystem::is_empty(directory / "run"));
}

TEST(RunLock, a_live_process_of_this_host_is_named_whatever_the_age) {
  const TemporaryDirectory directory;
  LockHolder holder = other_process();
  holder.job = "4711";
  write_lock(directory, holder, 100000);

  const std::string text = refusal(directory);

  EXPECT_NE(text.find("host " + holder.host), std::string::npos) << text;
  EXPECT_NE(text.find("pid " + std::to_string(holder.pid)), std::string::npos) << text;
  EXPECT_NE(text.find("Slurm job 4711"), std::string::npos) << text;
  EXPECT_EQ(LockHolder::parse(read_file(directory / "lock")).pid, holder.pid)
      << "the lock was touched";
  EXPECT_EQ(files_in(directory), 1U) << "something was left behind";
}

TEST(RunLock, this_process_cannot_hold_it_twice) {
  const TemporaryDirectory directory;
  const RunLock lock(directory.path());
  EXPECT_NE(refusal(directory), "");
}

TEST(RunLock, a_dead_process_of_this_host_is_followed_at_once) {
  const TemporaryDirectory directory;
  const pid_t child = ::fork();
  if (child == 0) ::_exit(0);
  LockHolder holder = LockHolder::this_process();
  holder.pid = child;
  ASSERT_EQ(::waitpid(child, nullptr, 0), child);
  write_lock(directory, holder);

  const RunLock lock(directory.path());

  EXPECT_EQ(LockHolder::parse(read_file(directory / "lock")).pid, ::getpid());
  EXPECT_EQ(files_in(directory), 1U);
}

TEST(RunLock, a_pid_with_another_start_time_is_another_process) {
  const TemporaryDirectory directory;
  LockHolder holder = other_process();
  holder.start_ticks += 1;
  write_lock(directory, holder);
  EXPECT_EQ(refusal(directory), "");
}

TEST(RunLock, another_host_keeps_it_for_60_seconds_after_a_touch) {
  const TemporaryDirectory directory;
  LockHolder holder = other_process();
  holder.host = "elsewhere";
  write_lock(directory, holder, 40);
  EXPECT_NE(refusal(directory).find("host elsewhere"), std::string::npos);
  write_lock(directory, holder, 70);
  EXPECT_EQ(refusal(directory), "");
}

TEST(RunLock, one_that_was_cut_off_while_being_written_counts_as_another_hosts) {
  const std::string whole = other_process().text();
  for (const std::string& text :
       {std::string(), std::string("{"), whole.substr(0, 9), whole.substr(0, whole.size() / 2)}) {
    const TemporaryDirectory directory;
    directory.write("lock", text);
    EXPECT_NE(refusal(directory).find("unknown holder"), std::string::npos) << text;
  }
}

TEST(RunLock, what_no_run_made_is_refused_and_stays) {
  const auto expect_refused = [](const TemporaryDirectory& directory) {
    EXPECT_TRUE(is_foreign_lock(directory / "lock"));
    try {
      const RunLock lock(directory.path());
      ADD_FAILURE() << "taken over";
    } catch (const ConfigError& error) {
      EXPECT_NE(std::string(error.what()).find("no lock of a run"), std::string::npos);
    }
    EXPECT_EQ(files_in(directory), 1U) << "something was left behind";
  };
  for (const std::string& text :
       {std::string("[]"), std::string("{\"pid\": \"x\"}"), std::string("\xff\xfe"),
        std::string("{\"host\": \"a\"}\n"), std::string("my key is under the mat\n"),
        std::string(10000, 'x')}) {
    const TemporaryDirectory directory;
    directory.write("lock", text);
    // However long nobody touched it.
    const std::array<timespec, 2> long_ago{timespec{1000, 0}, timespec{1000, 0}};
    ASSERT_EQ(::utimensat(AT_FDCWD, (directory / "lock").c_str(), long_ago.data(), 0), 0);
    expect_refused(directory);
    EXPECT_EQ(read_file(directory / "lock"), text);
  }
  {
    const TemporaryDirectory directory;
    std::filesystem::create_directory(directory / "lock");
    expect_refused(directory);
  }
  {
    const TemporaryDirectory directory;
    std::filesystem::create_symlink("nowhere", directory / "lock");
    expect_refused(directory);
  }
  {
    const TemporaryDirectory directory;
    ASSERT_EQ(::mkfifo((directory / "lock").c_str(), 0600), 0);
    expect_refused(directory);
  }
}

TEST(RunLock, is_lost_when_the_file_is_replaced_or_removed_and_leaves_the_new_one) {
  const TemporaryDirectory directory;
  {
    RunLock lock(directory.path());
    std::filesystem::remove(directory / "lock");
    EXPECT_FALSE(lock.touch());
    write_lock(directory, other_process());
    EXPECT_FALSE(lock.touch());
  }
  EXPECT_TRUE(std::filesystem::exists(directory / "lock"));
}

TEST(RunLock, a_folder_that_cannot_be_made_is_a_data_error) {
  const TemporaryDirectory directory;
  directory.write("file", "");
  EXPECT_THROW(RunLock(directory / "file" / "run"), DataError);
}

/// Starts `count` processes that take the lock at once; how many got it.
int winners(const std::filesystem::path& directory, int count) {
  std::array<int, 2> start{}, result{};
  EXPECT_EQ(::pipe(start.data()) | ::pipe(result.data()), 0);
  for (int i = 0; i < count; ++i) {
    if (::fork() != 0) continue;
    char go = 0;
    ::close(start[1]);
    [[maybe_unused]] auto ignored = ::read(start[0], &go, 1);  // until the parent closes its end
    int code = 1;
    try {
      const RunLock lock(directory);
      ignored = ::write(result[1], "w", 1);
      // Held until every other has tried: the parent closes the second pipe then.
      while (::access((directory / "over").c_str(), F_OK) != 0) ::sched_yield();
      code = 0;
    } catch (const EnvironmentError&) {
      ignored = ::write(result[1], "l", 1);
    } catch (...) {
      ignored = ::write(result[1], "?", 1);
    }
    ::_exit(code);
  }
  ::close(start[0]);
  ::close(start[1]);
  int won = 0;
  for (int i = 0; i < count; ++i) {
    char letter = '?';
    EXPECT_EQ(::read(result[0], &letter, 1), 1);
    EXPECT_NE(letter, '?');
    won += letter == 'w';
  }
  std::ofstream(directory / "over") << "";
  for (int i = 0; i < count; ++i) ::wait(nullptr);
  ::close(result[0]);
  ::close(result[1]);
  return won;
}

TEST(RunLock, of_many_processes_at_once_one_gets_it) {
  for (int round = 0; round < 5; ++round) {
    const TemporaryDirectory directory;
    EXPECT_EQ(winners(directory.path(), 6), 1);
  }
}

TEST(RunLock, of_many_processes_that_find_a_dead_lock_one_gets_it) {
  for (int round = 0; round < 5; ++round) {
    const TemporaryDirectory directory;
    LockHolder holder = LockHolder::this_process();
    holder.start_ticks += 1;
    write_lock(directory, holder);
    EXPECT_EQ(winners(directory.path(), 6), 1);
  }
}

TEST(JudgeLock, a_requeued_slurm_job_follows_itself_and_nobody_else) {
  LockHolder holder = other_process(), self = LockHolder::this_process();
  holder.host = "elsewhere";
  holder.job = self.job = "12";
  self.restarts = 1;
  EXPECT_TRUE(judge_lock(holder, self, 0, process_start_ticks).dead);
  self.restarts = 0;
  EXPECT_FALSE(judge_lock(holder, self, 0, process_start_ticks).dead)
      << "another step of the same job";
  self.restarts = 1;
  self.job = "13";
  EXPECT_FALSE(judge_lock(holder, self, 0, process_start_ticks).dead);
  self.job = holder.job = "";
  EXPECT_FALSE(judge_lock(holder, self, 0, process_start_ticks).dead);
}

TEST(JudgeLock, a_reboot_ends_every_process_of_the_host) {
  LockHolder holder = other_process();
  holder.boot = "before";
  EXPECT_TRUE(judge_lock(holder, LockHolder::this_process(), 0, process_start_ticks).dead);
}

TEST(JudgeLock, pids_of_another_container_say_nothing) {
  LockHolder holder = other_process();
  holder.pid_namespace = "pid:[1]";
  EXPECT_FALSE(judge_lock(holder, LockHolder::this_process(), 59, kNoProcess).dead);
  EXPECT_TRUE(judge_lock(holder, LockHolder::this_process(), 60, kNoProcess).dead);
}

TEST(LockHolder, survives_its_file) {
  LockHolder holder = LockHolder::this_process();
  holder.job = "4_1";
  holder.restarts = 3;
  const LockHolder read = LockHolder::parse(holder.text());
  EXPECT_EQ(read.text(), holder.text());
  EXPECT_EQ(read.pid, ::getpid());
  EXPECT_GT(read.start_ticks, 0);
}

}  // namespace
}  // namespace trireme
