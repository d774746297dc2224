#include "telemetry/metrics_command.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <string>

#include "base/error.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

using std::chrono::seconds;

class MetricsCommandTest : public testing::Test {
 protected:
  [[nodiscard]] std::string file(const char* name) const {
    return (directory_.path() / name).string();
  }
  /// A shell's words; $0 is a file of the test's own.
  [[nodiscard]] std::vector<std::string> shell(const std::string& words) const {
    return {"sh", "-c", words, file("out")};
  }
  TemporaryDirectory directory_;
};

TEST_F(MetricsCommandTest, gets_every_line_and_is_waited_for) {
  MetricsCommand command(shell("cat > \"$0\"; echo done >> \"$0\""));
  std::string all;
  for (int i = 0; i < 5000; ++i) {  // several times what a pipe holds
    const std::string line = "{\"step\": " + std::to_string(i) + ", \"text\": \"some words\"}\n";
    command.send(line);
    all += line;
  }
  command.close(seconds(60));
  EXPECT_EQ(read_file(file("out")), all + "done\n");
  EXPECT_EQ(command.dropped(), 0);
}

TEST_F(MetricsCommandTest, one_that_reads_nothing_holds_nothing_up_and_is_told_of_once) {
  testing::internal::CaptureStderr();
  const auto begin = std::chrono::steady_clock::now();
  {
    MetricsCommand command({"sleep", "600"});
    const std::string line(1 << 16, 'x');
    for (int i = 0; i < 400; ++i) command.send(line + "\n");  // 25 MiB
    EXPECT_GT(command.dropped(), 200);
    command.close(std::chrono::milliseconds(20));
  }
  EXPECT_LT(std::chrono::steady_clock::now() - begin, seconds(60)) << "it waited for the program";
  const std::string told = testing::internal::GetCapturedStderr();
  const std::size_t first = told.find("takes no more lines");
  EXPECT_NE(first, std::string::npos) << told;
  EXPECT_EQ(told.find("takes no more lines", first + 1), std::string::npos) << told;
  EXPECT_NE(told.find("lines were dropped"), std::string::npos) << told;
}

TEST_F(MetricsCommandTest, one_that_dies_ends_nothing) {
  testing::internal::CaptureStderr();
  MetricsCommand command(shell("read -r line; echo \"$line\" > \"$0\"; exit 7"));
  command.send("first\n");
  for (const auto end = std::chrono::steady_clock::now() + seconds(60);
       !std::filesystem::exists(file("out")) && std::chrono::steady_clock::now() < end;) {
  }
  const std::string line(1 << 16, 'x');
  for (int i = 0; i < 100; ++i) command.send(line + "\n");  // SIGPIPE would end this test
  command.close(seconds(60));
  const std::string told = testing::internal::GetCapturedStderr();
  EXPECT_NE(told.find("reads no more"), std::string::npos) << told;
  EXPECT_NE(told.find("exit code 7"), std::string::npos) << told;
}

TEST_F(MetricsCommandTest, a_missing_program_is_told_before_it_is_started) {
  for (const char* name : {"no-such-program-of-ours", "", "./no/such/program"}) {
    EXPECT_THROW((void)find_program(name), ConfigError) << name;
    EXPECT_THROW(MetricsCommand({name}), ConfigError) << name;
  }
  write_file_atomically(file("text"), "#!/bin/sh\n");
  EXPECT_THROW((void)find_program(file("text")), ConfigError) << "it may not be executed";
  EXPECT_EQ(find_program("sh").filename(), "sh");
}

TEST_F(MetricsCommandTest, the_program_has_no_other_file_of_ours) {
  const FileDescriptor open = open_file(file("ours"), 0102 /* O_RDWR | O_CREAT */);
  ASSERT_EQ(::dup2(open.get(), 77), 77);  // without close-on-exec
  MetricsCommand command(shell("ls /proc/$$/fd > \"$0\""));
  command.close(seconds(60));
  ::close(77);
  const std::string listed = read_file(file("out"));
  EXPECT_NE(listed.find("0\n"), std::string::npos);
  EXPECT_EQ(listed.find("77"), std::string::npos) << listed;
}

}  // namespace
}  // namespace trireme
