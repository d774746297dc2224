#include "guard/launch_guard.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/file.h"
#include "guard/hang.h"
#include "tests/support/temporary_directory.h"

namespace trireme {
namespace {

/// Whether a process that this one started sees `pid`, another such, in that state.
bool a_child_sees(pid_t pid, char state) {
  const pid_t child = ::fork();
  if (child == 0) {
    const std::vector<Sibling> all = siblings();
    const bool seen = std::any_of(all.begin(), all.end(), [&](const Sibling& one) {
      return one.pid == pid && one.state == state;
    });
    ::_exit(seen ? 0 : 1);
  }
  int status = 1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

/// Another process of this program that does nothing, once it does.
pid_t start_idle() {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  while (process_state_of(child) != 'S') ::usleep(1000);
  return child;
}

TEST(LaunchGuard, sees_the_processes_that_its_launcher_started_and_which_are_stopped) {
  const pid_t other = start_idle();
  EXPECT_TRUE(a_child_sees(other, 'S'));
  ::kill(other, SIGSTOP);
  int status = 0;
  ::waitpid(other, &status, WUNTRACED);
  EXPECT_TRUE(a_child_sees(other, 'T'));
  ::kill(other, SIGKILL);
  ::waitpid(other, &status, 0);
  EXPECT_FALSE(a_child_sees(other, 'T'));
  EXPECT_FALSE(a_child_sees(::getpid(), 'S')) << "the launcher is no rank";
}

TEST(LaunchGuard, names_those_that_are_stopped) {
  const std::vector<Sibling> all = {{70, 0, 'S'}, {71, 1, 'T'}, {72, 2, 'R'}, {73, 3, 'Z'}};
  EXPECT_EQ(name_stopped(all),
            "rank 1 (pid 71, stopped (SIGSTOP or a debugger)), rank 3 (pid 73, dead)");
  EXPECT_EQ(name_stopped(std::span(all).first(1)), "");
}

/// This program once more, with what Open MPI would tell rank `rank` of `ranks`: the test below is
/// all that it runs, and what it says goes to the end of `log`.
pid_t start_rank(int rank, int ranks, const std::string& log) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  ::setenv("OMPI_COMM_WORLD_RANK", std::to_string(rank).c_str(), 1);
  ::setenv("OMPI_COMM_WORLD_SIZE", std::to_string(ranks).c_str(), 1);
  const FileDescriptor file = open_file(log, O_WRONLY | O_CREAT | O_APPEND);
  ::dup2(file.get(), STDERR_FILENO);
  ::execl("/proc/self/exe", "guard_tests", "--gtest_also_run_disabled_tests",
          "--gtest_filter=LaunchGuard.DISABLED_a_rank_that_never_starts", nullptr);
  ::_exit(1);
}

/// Its command line, as it is by now.
std::string words_of(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/cmdline", std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(LaunchGuard, DISABLED_a_rank_that_never_starts) {
  const LaunchGuard guard([] { return 1.0; });
  for (;;) ::pause();
}

// The launcher may take any time to end the ranks when the first has left: here it never does.
TEST(LaunchGuard, where_one_rank_has_said_why_the_others_end_without_a_word) {
  const TemporaryDirectory folder;
  const std::string log = folder.path() / "log";
  std::vector<pid_t> ranks;
  for (int rank = 0; rank < 4; ++rank) ranks.push_back(start_rank(rank, 4, log));
  for (const pid_t rank : ranks) {
    while (words_of(rank).find("DISABLED") == std::string::npos) ::usleep(10000);
  }
  ::kill(ranks[1], SIGSTOP);
  for (const int rank : {0, 2, 3}) {
    int status = 0;
    ::waitpid(ranks[static_cast<std::size_t>(rank)], &status, 0);
    EXPECT_TRUE(WIFEXITED(status)) << "rank " << rank;
    EXPECT_EQ(WEXITSTATUS(status), static_cast<int>(ExitCode::kHang)) << "rank " << rank;
  }
  ::kill(ranks[1], SIGKILL);
  ::waitpid(ranks[1], nullptr, 0);
  const std::string said = read_file(log);
  const std::size_t line = said.find("train: exit ");
  ASSERT_NE(line, std::string::npos) << said;
  EXPECT_EQ(said.find("train: exit 124 (no progress, phase start: rank 1 "), line) << said;
  EXPECT_EQ(said.find("train: exit ", line + 1), std::string::npos) << said;
}

}  // namespace
}  // namespace trireme
