#include "telemetry/metrics_file.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

StepLine step_line(std::int64_t step, double loss = 2.5) {
  StepLine line;
  line.step = step;
  line.loss = loss;
  return line;
}

std::vector<Json> lines_of(const std::filesystem::path& path) {
  std::vector<Json> lines;
  for_each_metrics_line(path, 0,
                        [&](std::string_view, const Json& line) { lines.push_back(line); });
  return lines;
}

std::vector<std::int64_t> steps_of(const std::filesystem::path& path) {
  std::vector<std::int64_t> steps;
  for (const Json& line : lines_of(path)) {
    if (line.find("kind")->as_string() == "step") steps.push_back(line.find("step")->as_integer());
  }
  return steps;
}

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& [key, value] : object.as_object()) keys.push_back(key);
  return keys;
}

/// No file of this process may grow beyond `bytes` while this lives: what a full disk is to a
/// writer.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    handler_before_ = ::signal(SIGXFSZ, SIG_IGN);
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit{bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    ::signal(SIGXFSZ, handler_before_);
  }

 private:
  rlimit before_{};
  sighandler_t handler_before_;
};

using Keys = std::vector<std::string>;

TEST(MetricsFile, every_line_has_the_documented_fields_in_order) {
  EXPECT_EQ(keys_of(to_json(StartLine{})),
            (Keys{"kind", "version", "world", "mesh", "parameters", "model_flops_per_token",
                  "peak_tflops", "config"}));
  const Json step = to_json(StepLine{});
  EXPECT_EQ(keys_of(step), (Keys{"kind", "step", "loss", "grad_norm", "lr", "consumed_samples",
                                 "consumed_tokens", "step_seconds", "tokens_per_second",
                                 "tflops_per_second", "mfu", "memory_bytes", "time"}));
  EXPECT_EQ(keys_of(*step.find("time")),
            (Keys{"forward_backward", "communication_exposed", "data_wait", "optimizer"}));
  EXPECT_EQ(keys_of(to_json(EvaluationLine{})),
            (Keys{"kind", "step", "loss", "perplexity", "tokens"}));
  EXPECT_EQ(keys_of(to_json(EvaluationLine{1, 2, 3, 4, "web"})),
            (Keys{"kind", "step", "loss", "perplexity", "tokens", "name"}));
  EXPECT_EQ(keys_of(to_json(SampleLine{})), (Keys{"kind", "step", "prompt", "text"}));
  EXPECT_EQ(keys_of(to_json(CheckpointLine{})),
            (Keys{"kind", "step", "path", "bytes", "stall_seconds", "save_seconds", "error"}));
  EXPECT_EQ(keys_of(to_json(SkipLine{})), (Keys{"kind", "step", "reason", "rank", "tensor"}));
  EXPECT_EQ(keys_of(to_json(ResumeLine{})), (Keys{"kind", "step", "path"}));
  EXPECT_EQ(keys_of(to_json(EndLine{})), (Keys{"kind", "step", "reason", "failed_saves",
                                               "bubble_measured", "bubble_simulated"}));
  EndLine ahead;
  ahead.undone_steps = 3;
  EXPECT_EQ(to_json(ahead).find("undone_steps")->as_integer(), 3);
}

TEST(MetricsFile, a_step_line_is_exactly_this_text) {
  StepLine line = step_line(7, 0.1);
  line.grad_norm = 1;
  line.lr = 3e-4;
  line.consumed_samples = 56;
  line.consumed_tokens = 7168;
  line.step_seconds = 0.5;
  line.tokens_per_second = 2048;
  line.mfu = 0.25;
  line.memory_bytes = 1 << 20;
  line.time.communication_exposed = {{"data", 0.125}};

  EXPECT_EQ(
      to_json(line).dump(),
      R"({"kind":"step","step":7,"loss":0.1,"grad_norm":1.0,"lr":3e-04,"consumed_samples":56,)"
      R"("consumed_tokens":7168,"step_seconds":0.5,"tokens_per_second":2048.0,"tflops_per_second":0.0,"mfu":0.25,)"
      R"("memory_bytes":1048576,"time":{"forward_backward":0.0,"communication_exposed":{"data":0.125},)"
      R"("data_wait":0.0,"optimizer":0.0}})");
}

TEST(MetricsFile, figures_of_stability_have_keys_where_they_are_measured_alone) {
  StepLine line = step_line(7, 0.1);
  EXPECT_EQ(to_json(line).find("logit_z_loss"), nullptr);
  EXPECT_EQ(to_json(line).find("noise_scale"), nullptr);
  line.logit_z_loss = 0.5;
  line.noise_scale = std::numeric_limits<double>::quiet_NaN();
  const Json json = to_json(line);
  EXPECT_EQ(json.find("logit_z_loss")->as_double(), 0.5);
  EXPECT_EQ(json.find("noise_scale")->dump(), "null");
}

TEST(MetricsFile, non_finite_and_unknown_values_are_null) {
  StepLine line = step_line(1, std::numeric_limits<double>::quiet_NaN());
  line.grad_norm = std::numeric_limits<double>::infinity();

  const Json json = to_json(line);
  const Json read = parse_json(json.dump(), "test");
  EXPECT_TRUE(read.find("loss")->is_null());
  EXPECT_TRUE(read.find("grad_norm")->is_null());
  EXPECT_TRUE(read.find("mfu")->is_null());
  EXPECT_TRUE(to_json(CheckpointLine{}).find("error")->is_null());
}

TEST(MetricsFile, losses_read_back_to_the_same_bits) {
  const TemporaryDirectory folder;
  std::vector<double> losses = {5e-324, 0.1, 1.7976931348623157e308, 10.82490511970208, 1.0 / 3};
  for (std::uint64_t i = 0; i < 500; ++i) losses.push_back(std::exp(20.0 * normal(11, i)));
  {
    MetricsFile metrics(folder / "metrics.jsonl", 0);
    for (std::size_t i = 0; i < losses.size(); ++i)
      metrics.append(step_line(static_cast<std::int64_t>(i) + 1, losses[i]));
  }

  const auto lines = lines_of(folder / "metrics.jsonl");
  ASSERT_EQ(lines.size(), losses.size());
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint64_t>(lines[i].find("loss")->as_double()),
              std::bit_cast<std::uint64_t>(losses[i]));
  }
}

TEST(MetricsFile, nothing_is_written_before_a_flush) {
  const TemporaryDirectory folder;
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  metrics.append(step_line(1));
  EXPECT_EQ(std::filesystem::file_size(metrics.path()), 0U);
  EXPECT_TRUE(metrics.flush());
  EXPECT_EQ(steps_of(metrics.path()), (std::vector<std::int64_t>{1}));
}

TEST(MetricsFile, resuming_drops_later_steps_and_keeps_lines_without_a_step) {
  const TemporaryDirectory folder;
  {
    MetricsFile metrics(folder / "metrics.jsonl", 0);
    metrics.append(StartLine{});
    for (int step = 1; step <= 5; ++step) metrics.append(step_line(step));
    metrics.append(EvaluationLine{5, 2, 7, 100});
    metrics.append(SkipLine{4, "loss", 0, "head"});
    metrics.append(StartLine{});
  }
  MetricsFile metrics(folder / "metrics.jsonl", 3);
  metrics.append(ResumeLine{3, "checkpoints/step-00000003"});
  metrics.append(step_line(4));
  metrics.flush();

  EXPECT_EQ(steps_of(metrics.path()), (std::vector<std::int64_t>{1, 2, 3, 4}));
  std::string kinds;
  for (const Json& line : lines_of(metrics.path())) kinds += line.find("kind")->as_string() + " ";
  EXPECT_EQ(kinds, "start step step step start resume step ");
}

TEST(MetricsFile, resuming_keeps_the_bytes_of_the_lines_it_keeps) {
  const TemporaryDirectory folder;
  const std::string kept =
      "{\"kind\":\"step\",  \"step\":1, \"loss\":1.50, \"of_a_later_version\":[1]}\n";
  folder.write("metrics.jsonl", kept + "{\"kind\":\"step\",\"step\":2}\n");
  const MetricsFile metrics(folder / "metrics.jsonl", 1);
  EXPECT_EQ(read_file(metrics.path()), kept);
}

TEST(MetricsFile, a_torn_last_line_is_dropped_even_where_it_parses) {
  const TemporaryDirectory folder;
  for (const std::string torn :
       {"{\"kind\":\"st", "{\"kind\":\"step\",\"step\":2}", "\xff\xfe", "{"}) {
    folder.write("metrics.jsonl", "{\"kind\":\"step\",\"step\":1}\n" + torn);
    const MetricsFile metrics(folder / "metrics.jsonl", 9);
    EXPECT_EQ(read_file(metrics.path()), "{\"kind\":\"step\",\"step\":1}\n") << torn;
  }
}

TEST(MetricsFile, lines_that_are_no_objects_are_dropped_wherever_they_stand) {
  const TemporaryDirectory folder;
  folder.write("metrics.jsonl", std::string("\n[1]\n{\"a\":1,\"a\":2}\n") + std::string(7, '\0') +
                                    "\n{\"step\":\"x\"}\n{\"step\":1}\n");
  const MetricsFile metrics(folder / "metrics.jsonl", 5);
  EXPECT_EQ(read_file(metrics.path()), "{\"step\":\"x\"}\n{\"step\":1}\n");
}

TEST(MetricsFile, a_full_disk_costs_no_step_once_there_is_room_again) {
  const TemporaryDirectory folder;
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  metrics.append(step_line(1));
  ASSERT_TRUE(metrics.flush());
  const auto size = std::filesystem::file_size(metrics.path());
  {
    const FileSizeLimit limit(size + 40);
    metrics.append(step_line(2));
    testing::internal::CaptureStderr();
    EXPECT_FALSE(metrics.flush());
    metrics.append(step_line(3));
    EXPECT_FALSE(metrics.sync());
    const std::string warnings = testing::internal::GetCapturedStderr();
    EXPECT_NE(warnings.find("warning: "), std::string::npos);
    EXPECT_EQ(warnings.find("warning: "), warnings.rfind("warning: ")) << "warned once only";
    EXPECT_EQ(metrics.failed_flushes(), 2);
    EXPECT_EQ(std::filesystem::file_size(metrics.path()), size)
        << "no torn line while the disk is full";
  }
  EXPECT_TRUE(metrics.flush());
  EXPECT_EQ(steps_of(metrics.path()), (std::vector<std::int64_t>{1, 2, 3}));
}

TEST(MetricsFile, a_path_that_cannot_be_opened_is_refused_before_training) {
  const TemporaryDirectory folder;
  folder.write("file", "");
  EXPECT_THROW(MetricsFile(folder / "file/metrics.jsonl", 0), DataError);
  EXPECT_THROW(MetricsFile(folder / "missing/metrics.jsonl", 0), DataError);
  std::filesystem::create_directory(folder / "metrics.jsonl");
  EXPECT_THROW(MetricsFile(folder / "metrics.jsonl", 0), DataError);
}

TEST(MetricsFile, lines_are_read_on_from_where_the_last_reading_ended) {
  const TemporaryDirectory folder;
  MetricsFile metrics(folder / "metrics.jsonl", 0);
  metrics.append(step_line(1));
  metrics.flush();
  const auto ignore = [](std::string_view, const Json&) {};
  const std::uint64_t offset = for_each_metrics_line(metrics.path(), 0, ignore);
  metrics.append(step_line(2));
  metrics.flush();

  std::vector<std::int64_t> steps;
  for_each_metrics_line(metrics.path(), offset, [&](std::string_view, const Json& line) {
    steps.push_back(line.find("step")->as_integer());
  });
  EXPECT_EQ(steps, (std::vector<std::int64_t>{2}));
}

TEST(MetricsFile, the_reasons_of_an_end_are_the_documented_words) {
  std::string words;
  for (int i = 0; i <= static_cast<int>(EndReason::kError); ++i) {
    words += std::string(name_of(static_cast<EndReason>(i))) + " ";
  }
  EXPECT_EQ(words, "steps exit_at_step time signal stop_file early_stop diverged error ");
}

}  // namespace
}  // namespace trireme
