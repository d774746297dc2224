#include "guard/process_stat.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

namespace trireme {
namespace {

TEST(ProcessStat, a_process_that_ends_before_it_is_read_is_none) {
  const pid_t child = ::fork();
  if (child == 0) {
    for (;;) ::pause();
  }
  std::ifstream stat(fmt::format("/proc/{}/stat", child));
  ASSERT_TRUE(stat.is_open());
  EXPECT_NE(process_stat(child), "");
  ::kill(child, SIGKILL);
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(fields_of_stat(stat), "");
  EXPECT_EQ(process_stat(child), "");
}

TEST(ProcessStat, a_name_may_hold_anything) {
  std::istringstream stat("7 (a) S 1 (b\n) R 5 6\n");
  EXPECT_EQ(fields_of_stat(stat), "R 5 6\n");
  std::istringstream cut("7 (a)");
  EXPECT_EQ(fields_of_stat(cut), "");
}

}  // namespace
}  // namespace trireme
