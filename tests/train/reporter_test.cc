#include "train/reporter.h"

#include <gtest/gtest.h>

#include "support/temporary_directory.h"

namespace trireme {
namespace {

TEST(Reporter, the_console_tells_the_rate_of_all_steps_since_its_last_line) {
  const TemporaryDirectory folder;
  RunConfig config;
  config.run.directory = folder.path().string();
  config.log.interval_steps = 4;
  config.log.tensorboard = false;
  testing::internal::CaptureStderr();
  {
    Reporter reporter(config, {}, 100, 1);
    for (std::int64_t step = 1; step <= 8; ++step) {
      StepLine line;
      line.step = step;
      // 1,000 tokens each; the last of four takes ten times as long.
      line.step_seconds = step % 4 == 0 ? 10 : 1;
      line.tokens_per_second = 1000 / line.step_seconds;
      line.mfu = 0.5 / line.step_seconds;
      reporter.step(line);
    }
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("1.00k tokens/s | MFU 50.0%"), std::string::npos) << text;  // the first step
  EXPECT_NE(text.find("250 tokens/s | MFU 12.5%"), std::string::npos) << text;    // 3 in 12 s
  EXPECT_NE(text.find("308 tokens/s | MFU 15.4%"), std::string::npos) << text;    // 4 in 13 s
}

}  // namespace
}  // namespace trireme
