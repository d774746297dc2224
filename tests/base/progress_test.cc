#include "base/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "base/log.h"

namespace trireme {
namespace {

TEST(Progress, knows_three_words) {
  EXPECT_EQ(parse_show("auto", "--progress"), Show::kAuto);
  EXPECT_EQ(parse_show("always", "--progress"), Show::kAlways);
  EXPECT_EQ(parse_show("never", "--progress"), Show::kNever);
  EXPECT_THROW((void)parse_show("yes", "--progress"), ConfigError);
}

TEST(Progress, a_word_beats_the_terminal) {
  EXPECT_TRUE(shows_on_terminal(Show::kAlways));
  EXPECT_FALSE(shows_on_terminal(Show::kNever));
}

TEST(Progress, short_work_writes_nothing) {
  testing::internal::CaptureStderr();
  for (const Show show : {Show::kAuto, Show::kAlways, Show::kNever}) {
    Progress progress("work", 10, ProgressUnit::kItems, show);
    for (int i = 0; i < 10; ++i) progress.add(1);
  }
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(Progress, only_the_rank_that_speaks_draws_and_the_command_line_decides_auto) {
  const auto drawn = [](int rank, Show of_command_line) {
    set_log_rank(rank);
    set_default_progress(of_command_line);
    testing::internal::CaptureStderr();
    {
      Progress progress("work", 10, ProgressUnit::kItems);
      const auto end = std::chrono::steady_clock::now() + std::chrono::milliseconds(1100);
      while (std::chrono::steady_clock::now() < end) {
      }
      progress.add(5);
    }
    set_log_rank(0);
    set_default_progress(Show::kAuto);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_NE(drawn(0, Show::kAlways).find("work [############............] 5 of 10"),
            std::string::npos);
  EXPECT_EQ(drawn(1, Show::kAlways), "");
  EXPECT_EQ(drawn(0, Show::kNever), "");
}

TEST(Progress, colours_follow_the_command_line) {
  const auto warned = [](Show show) {
    set_colors(show);
    testing::internal::CaptureStderr();
    log_warning("look");
    log_info("error: no");
    set_colors(Show::kAuto);
    return testing::internal::GetCapturedStderr();
  };
  EXPECT_EQ(warned(Show::kNever), "warning: look\nerror: no\n");
  EXPECT_EQ(warned(Show::kAlways), "\033[1;33mwarning:\033[0m look\n\033[1;31merror:\033[0m no\n");
}

}  // namespace
}  // namespace trireme
