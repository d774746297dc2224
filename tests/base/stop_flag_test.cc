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

TEST(StopFlagDeathTest, the_first_signal_is_answered_at_once_and_the_answer_ends_with_its_object) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        { const StopAnswer gone("nobody hears this"); }
        const StopAnswer answer("stopping after this step");
        send_and_wait(SIGINT, SIGINT);
        // The handler raises the flag, then answers.
        ::usleep(200000);
        ::_exit(0);
      },
      testing::ExitedWithCode(0), "^SIGINT: stopping after this step\n$");
  EXPECT_EXIT(
      {
        install_stop_handlers();
        { const StopAnswer gone("nobody hears this"); }
        send_and_wait(SIGINT, SIGINT);
        ::usleep(200000);
        ::_exit(0);
      },
      testing::ExitedWithCode(0), "^$");
}

TEST(StopFlagDeathTest, of_processes_that_share_a_word_one_answers) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        std::atomic<std::uint64_t> told{1};
        const StopAnswer answer("stopping", &told);
        send_and_wait(SIGTERM, SIGTERM);
        ::usleep(200000);
        ::_exit(0);
      },
      testing::ExitedWithCode(0), "^$");
  EXPECT_EXIT(
      {
        install_stop_handlers();
        std::atomic<std::uint64_t> told{0};
        const StopAnswer answer("stopping", &told);
        send_and_wait(SIGTERM, SIGTERM);
        for (int i = 0; i < 10000 && told == 0; ++i) ::usleep(1000);
        ::usleep(200000);
        ::_exit(told == 1 ? 0 : 1);
      },
      testing::ExitedWithCode(0), "^SIGTERM: stopping\n$");
}

TEST(StopFlagDeathTest, once_the_code_is_announced_a_second_signal_ends_with_it_and_says_nothing) {
  EXPECT_EXIT(
      {
        install_stop_handlers();
        send_and_wait(SIGUSR1, SIGUSR1);
        announce_exit_code(75);
        send_and_wait(SIGTERM, -1);
        ::_exit(0);
      },
      testing::ExitedWithCode(75), "^$");
}

}  // namespace
}  // namespace trireme
