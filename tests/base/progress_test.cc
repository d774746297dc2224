#include "base/progress.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

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

}  // namespace
}  // namespace trireme
