#include "base/log.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

class LogTest : public testing::Test {
 protected:
  ~LogTest() override { set_log_rank(0); }
};

TEST_F(LogTest, rank_0_speaks_on_standard_error_only) {
  testing::internal::CaptureStdout();
  testing::internal::CaptureStderr();
  log_info("step {}", 3);
  log_warning("disk {}", "full");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "step 3\nwarning: disk full\n");
  EXPECT_EQ(testing::internal::GetCapturedStdout(), "");
}

TEST_F(LogTest, other_ranks_speak_only_by_name) {
  set_log_rank(2);
  testing::internal::CaptureStderr();
  log_info("unheard");
  log_warning("unheard");
  log_any_rank("heard {}", 1);
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "rank 2: heard 1\n");
}

TEST_F(LogTest, text_with_braces_and_percents_passes_unchanged) {
  testing::internal::CaptureStderr();
  log_info_text("{} {0} %s %v {");
  log_warning_text("{unclosed");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "{} {0} %s %v {\nwarning: {unclosed\n");
}

}  // namespace
}  // namespace trireme
