#include "train/launch_guard.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "train/hang.h"

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

}  // namespace
}  // namespace trireme
