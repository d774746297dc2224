#include <gtest/gtest.h>

#include <cstdio>

#include "base/file.h"
#include "base/json.h"
#include "commands/commands.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

class CompareCommand : public ::testing::Test {
 protected:
  CompareCommand() {
    for (const char* name : {"a", "b"}) {
      std::filesystem::create_directory(folder_ / name);
      folder_.write(std::string(name) + "/config.json", std::string(R"({"run":{"directory":")") +
                                                            name + R"("},"optimizer":{"lr":)" +
                                                            (*name == 'a' ? "0.1" : "0.2") + "}}");
    }
    folder_.write("a/metrics.jsonl",
                  R"({"kind":"step","step":3,"loss":2.5,"consumed_tokens":96,"step_seconds":2,)"
                  R"("tokens_per_second":16,"mfu":null})"
                  "\n"
                  R"({"kind":"st)");
  }
  int code(std::vector<std::string> words) {
    words.insert(words.begin(), "compare");
    testing::internal::CaptureStdout();
    testing::internal::CaptureStderr();
    const int ended = run_command_line(words);
    std::fflush(stdout);
    out_ = testing::internal::GetCapturedStdout();
    log_ = testing::internal::GetCapturedStderr();
    return ended;
  }
  std::string path(const char* name) { return (folder_ / name).string(); }

  const TemporaryDirectory folder_;
  std::string out_, log_;
};

TEST_F(CompareCommand, prints_the_object_of_the_contract) {
  ASSERT_EQ(code({path("a"), path("b"), "--json"}), 0);
  EXPECT_EQ(
      out_,
      R"({"runs":[{"directory":")" + path("a") +
          R"(","steps":3,"tokens":96,"loss":2.5,"validation_loss":null,"tokens_per_second":16.0,)"
          R"("mfu":null,"step_seconds":null,"predicted_step_seconds":null,"joules":null},)"
          R"({"directory":")" +
          path("b") +
          R"(","steps":null,"tokens":null,"loss":null,"validation_loss":null,"tokens_per_second":null,)"
          R"("mfu":null,"step_seconds":null,"predicted_step_seconds":null,"joules":null}],)"
          R"("config":{"optimizer.lr":[0.1,0.2]}})"
          "\n");
}

TEST_F(CompareCommand, prints_tables_and_draws) {
  ASSERT_EQ(code({path("a"), path("b"), "--svg", path("x.svg")}), 0);
  EXPECT_NE(out_.find("a        3"), std::string::npos) << out_;
  EXPECT_NE(out_.find("optimizer.lr"), std::string::npos);
  EXPECT_NE(read_file(folder_ / "x.svg").find("</svg>"), std::string::npos);
  EXPECT_EQ(code({path("a"), path("b"), "--svg", path("x.svg")}), 0);
}

TEST_F(CompareCommand, refuses_one_run_and_what_is_none) {
  EXPECT_EQ(code({path("a")}), 2);
  EXPECT_NE(log_.find("two or more"), std::string::npos) << log_;
  EXPECT_EQ(code({}), 2);
  EXPECT_EQ(code({path("a"), path("absent")}), 74);
  EXPECT_NE(log_.find("absent: there is no such folder"), std::string::npos) << log_;
  EXPECT_EQ(code({path("a"), path("b"), "--svg", path("absent/x.svg")}), 74);
  const std::string metrics = read_file(folder_ / "a/metrics.jsonl");
  EXPECT_EQ(code({path("a"), path("b"), "--svg", path("a/metrics.jsonl")}), 2);
  EXPECT_EQ(read_file(folder_ / "a/metrics.jsonl"), metrics);
  EXPECT_EQ(out_, "");
}

}  // namespace
}  // namespace trireme
