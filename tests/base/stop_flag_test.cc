#include "base/stop_flag.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

namespace trireme {
namespace {

// Each claim runs in a child of its own: the flag is for the life of a process.

/// As another process would: whichever thread takes it, within 10 s or never.
void send_and_wait(int number, int flag_afterwards) {
  ::kill(::getpid(), number);
  for (int i = 0; i < 10000 && stop_signal() != flag_afterwards; ++i) ::usleep(1000);
}

TEST(StopFlagDeathTest, without_a_signal_the_flag_is_down) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        ::_exit(stop_signal() == 0 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "");
}

TEST(StopFlagDeathTest, the_first_signal_only_raises_the_flag) {
  for (const int number : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_EXIT(
        {
          install_stop_handlers();
          send_and_wait(number, number);
          ::_exit(stop_signal() == number ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST(StopFlagDeathTest, a_second_signal_ends_the_process_with_128_plus_its_number) {
  for (const int second : {SIGTERM, SIGINT, SIGUSR1}) {
    EXPECT_EXIT(
        {
          install_stop_handlers();
          send_and_wait(SIGUSR1, SIGUSR1);
          send_and_wait(second, -1);
          ::_exit(0);
        },
        testing::ExitedWithCode(128 + second),
        "^train: exit " + std::to_string(128 + second) + " \\(a second signal\\)\n$");
  }
}

TEST(StopFlagDeathTest, once_the_code_is_settled_a_second_signal_ends_with_it_and_says_nothing) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        send_and_wait(SIGUSR1, SIGUSR1);
        settle_exit_code(75);
        send_and_wait(SIGTERM, -1);
        ::_exit(0);
      },
      testing::ExitedWithCode(75), "^$");
}

}  // namespace
}  // namespace trireme
