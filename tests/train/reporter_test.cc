#include "train/reporter.h"

#include <gtest/gtest.h>

#include "base/file.h"
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
    Reporter reporter(config, {}, {100, 100}, 1);
    for (std::int64_t step = 1; step <= 8; ++step) {
      StepLine line;
      line.step = line.consumed_samples = step;
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

TEST(Reporter, the_end_has_what_was_predicted_and_what_it_took) {
  const TemporaryDirectory folder;
  RunConfig config;
  config.run.directory = folder.path().string();
  config.log.tensorboard = false;
  testing::internal::CaptureStderr();
  {
    Reporter reporter(config, {}, {3, 3}, 1);
    StartLine start;
    start.predicted.emplace().step_seconds = 1.5;
    reporter.start(start);
    for (std::int64_t step = 1; step <= 3; ++step) {
      StepLine line;
      line.step = step;
      line.step_seconds = step == 1 ? 20 : 2;
      line.tokens_per_second = 1;
      if (step == 3) line.joules = 7.2e6;
      reporter.step(line);
    }
    reporter.end({});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  EXPECT_NE(text.find("a step took 2 s, 1.5 s were predicted"), std::string::npos) << text;
  EXPECT_NE(text.find("energy: 2 kWh measured"), std::string::npos) << text;
  const std::string metrics = read_file(folder / "metrics.jsonl");
  const Json end = parse_json(metrics.substr(metrics.find("{\"kind\":\"end\"")), "the end");
  EXPECT_EQ(end.find("step_seconds")->as_double(), 2);
  EXPECT_EQ(end.find("predicted_step_seconds")->as_double(), 1.5);
  EXPECT_EQ(end.find("joules")->as_double(), 7.2e6);
  EXPECT_NE(metrics.find("\"predicted\":{\"cluster\""), std::string::npos) << metrics;
}

TEST(Reporter, a_skip_says_why) {
  const TemporaryDirectory folder;
  RunConfig config;
  config.run.directory = folder.path().string();
  config.log.interval_steps = 1;
  config.log.tensorboard = false;
  testing::internal::CaptureStderr();
  {
    Reporter reporter(config, {}, {100, 100}, 1);
    StepLine nothing;  // of a step that was not computed
    nothing.step = 3;
    nothing.step_seconds = 0.1;
    nothing.mfu = 0;
    reporter.step(nothing);
    reporter.skip({3, std::string(kPassedOver), 0, ""});
    reporter.skip({4, std::string(kLossSpike), 0, ""});
    reporter.skip({5, std::string(kNormSpike), 0, ""});
    reporter.skip({6, std::string(kNoTargets), 0, ""});
    reporter.skip({7, "non-finite gradient", 2, "lm_head.weight"});
  }
  const std::string text = testing::internal::GetCapturedStderr();
  for (const char* line :
       {"0 tokens/s | MFU 0.0%", "step 3 passed over (stability.skip_steps)",
        "step 4 skipped: its loss is a spike", "step 5 skipped: its gradient norm is a spike",
        "step 6 skipped: no token of its batch", "(first in lm_head.weight, rank 2)"})
    EXPECT_NE(text.find(line), std::string::npos) << line << text;
  const std::string metrics = read_file(folder / "metrics.jsonl");
  EXPECT_NE(metrics.find(
                R"({"kind":"skip","step":5,"reason":"grad_norm_spike","rank":null,"tensor":null})"),
            std::string::npos)
      << metrics;
}

}  // namespace
}  // namespace trireme
