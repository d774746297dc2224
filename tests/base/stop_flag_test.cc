#include "base/stop_flag.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>

namespace trireme {
namespace {

// Each claim runs in a child of its own: the flag is for the life of a process.

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
          ::raise(number);
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
          ::raise(SIGUSR1);
          ::raise(second);
          ::_exit(0);
        },
        testing::ExitedWithCode(128 + second),
        "^train: exit " + std::to_string(128 + second) + " \\(a second signal\\)\n$");
  }
}

}  // namespace
}  // namespace trireme
