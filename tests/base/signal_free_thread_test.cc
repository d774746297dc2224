#include "base/signal_free_thread.h"

#include <gtest/gtest.h>

#include "support/thread_limit.h"

namespace trireme {
namespace {

TEST(SignalFreeThread, takes_no_signals_and_leaves_the_callers_as_they_are) {
  sigset_t inside, before, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  signal_free_thread([&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }).join();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&inside, SIGTERM), 1);
  EXPECT_EQ(sigismember(&after, SIGTERM), sigismember(&before, SIGTERM));
}

TEST(SignalFreeThread, none_to_be_had_is_what_the_machine_lacks) {
  {
    const ThreadLimit none(0);
    try {
      signal_free_thread([] {}).join();
      FAIL() << "there was one";
    } catch (const EnvironmentError& error) {
      EXPECT_NE(std::string_view(error.what()).find("ulimit -u"), std::string_view::npos);
    }
  }
  sigset_t after;
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  EXPECT_EQ(sigismember(&after, SIGTERM), 0);
  signal_free_thread([] {}).join();
}

}  // namespace
}  // namespace trireme
