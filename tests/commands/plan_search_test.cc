#include "commands/plan_search.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "commands/commands.h"
#include "config/parse.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

constexpr const char* kConfig = R"({
  "run": {"directory": "r", "steps": 10},
  "model": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 4,
            "intermediate_size": 128, "vocab_size": 257, "max_position_embeddings": 64,
            "num_hidden_layers": 4},
  "data": {"train": "synthetic", "sequence_length": 32},
  "batch": {"global": 16, "micro": 1}, "optimizer": {"lr": 0.001},
  "parallel": {"tensor": 4, "zero_stage": 3, "recompute": "full"}})";

LayoutTask task_of(const Json& given, std::int64_t world) {
  const LoadedConfig loaded = parse_run_config(given);
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  LayoutTask task;
  std::vector<Problem> problems;
  task.config = loaded.config;
  task.config.run.device = DeviceChoice::kCuda;
  task.cluster = read_cluster("h100", problems);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  task.input.world = world;
  task.input.device = DeviceKind::kCuda;
  task.memory = task.cluster.device.memory_bytes;
  task.input.node = {task.cluster.devices_per_node, task.memory};
  return task;
}

PlannedSearch planned(const LayoutTask& task) {
  std::vector<Problem> problems;
  PlannedSearch search = plan_search(task, problems);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  return search;
}

TEST(PlanSearch, the_written_config_is_taken_and_takes_as_long_as_predicted) {
  const TemporaryDirectory directory;
  const Json given = parse_json(kConfig, "config");
  const PlannedSearch search = planned(task_of(given, 8));
  const std::string path = directory.path() / "best.json";
  write_best_config(search, given, path);
  const LayoutTask again = task_of(parse_json(read_file(path), path), 8);
  std::vector<Problem> problems;
  const auto taken = time_layout(again, again.config, problems);
  ASSERT_TRUE(taken) << format_problems(problems);
  EXPECT_EQ(taken->step.seconds, search.found.best.front().step.seconds);
  EXPECT_EQ(taken->bytes(), search.found.best.front().bytes());
  EXPECT_LT(taken->step.seconds, search.own.value().step.seconds);
  EXPECT_EQ(again.config.optimizer.lr, 0.001);
  EXPECT_THROW(check_written_config(path), ConfigError);
}

TEST(PlanSearch, json_has_the_keys_of_the_contract_best_first) {
  LayoutTask task = task_of(parse_json(kConfig, "config"), 8);
  task.cluster.price.device_hour = 2;
  const PlannedSearch search = planned(task);
  const Json layouts = layouts_json(search);
  double before = 0;
  for (const Json& layout : layouts.as_array()) {
    for (const char* key : {"parallel", "batch", "precision", "recompute", "step_seconds",
                            "memory_bytes_max", "cost"})
      ASSERT_NE(layout.find(key), nullptr) << key;
    const double seconds = layout.find("step_seconds")->as_double();
    EXPECT_GE(seconds, before);
    before = seconds;
    // 10 steps of 8 devices at 2 an hour.
    EXPECT_NEAR(layout.find("cost")->as_double(), 10 * 8 * 2 * seconds / 3600, 1e-9 * seconds);
    EXPECT_EQ(layout.find("batch")->find("global")->as_integer(), 16);
  }
  const Json all = search_json(search);
  EXPECT_EQ(all.find("ranks_fewest")->as_integer(), 1);
  EXPECT_TRUE(all.find("own")->find("fits")->as_bool());
}

TEST(PlanSearch, text_says_what_bounds_each_and_what_changes_bring) {
  const std::string text = search_text(planned(task_of(parse_json(kConfig, "config"), 8)));
  for (const char* words :
       {"Layouts of 8 ranks for a batch of 16", "takes most", "The config's own layout",
        "with parallel.recompute \"none\": ", "with parallel.zero_stage 0: ",
        "with precision.compute \"fp8\": ", "Its largest micro-batch that fits: ",
        "The fewest ranks that hold the model: 1 "})
    EXPECT_NE(text.find(words), std::string::npos) << words << "\n" << text;
}

TEST(PlanSearch, fp8_is_no_change_for_gpus_that_have_none) {
  LayoutTask task = task_of(parse_json(kConfig, "config"), 8);
  task.cluster.device.name = "A100";  // whatever rate its file claims
  const std::string text = search_text(planned(task));
  EXPECT_NE(
      text.find("with precision.compute \"fp8\": refused (precision.compute: is \"fp8\" by the "
                "recipe \"tensor\", which A100 (compute capability 8.0) cannot do"),
      std::string::npos)
      << text;
}

TEST(PlanSearch, nothing_fits_names_the_nearest_and_what_would) {
  LayoutTask task = task_of(parse_json(kConfig, "config"), 1);
  task.config.parallel = {};
  std::vector<Problem> problems;
  const auto alone = time_layout(task, task.config, problems);
  task.memory = alone.value().bytes() / 2;
  task.input.node = {};
  const PlannedSearch search = plan_search(task, problems);
  ASSERT_EQ(problems.size(), 1U) << format_problems(problems);
  EXPECT_EQ(problems.front().path, "--search");
  EXPECT_EQ(problems.front().code, ExitCode::kConfig);
  EXPECT_NE(problems.front().message.find("The nearest is "), std::string::npos);
  EXPECT_NE(problems.front().legal.find("of memory"), std::string::npos);
  EXPECT_TRUE(search.found.best.empty());
}

TEST(PlanSearch, a_batch_that_no_layout_divides_is_refused) {
  LayoutTask task = task_of(parse_json(kConfig, "config"), 7);
  std::vector<Problem> problems;
  plan_search(task, problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_NE(problems.front().message.find("no layout is legal"), std::string::npos);
  EXPECT_EQ(format_problem(problems.front()).find(".."), std::string::npos);
  task.config.batch = {};
  task.config.batch.micro = 1;
  problems.clear();
  plan_search(task, problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems.front().path, "batch.global");
}

TEST(PlanSearch, options_that_make_no_sense_are_refused_before_any_work) {
  const auto refused = [](const std::vector<std::string>& words) {
    try {
      plan_command(words);
    } catch (const Error& error) {
      return error.code() == ExitCode::kConfig;
    }
    return false;
  };
  EXPECT_TRUE(refused({"absent.json", "--search"}));
  EXPECT_TRUE(refused({"absent.json", "--search", "--cluster", "h100", "--expert-load", "x"}));
  EXPECT_TRUE(refused({"absent.json", "--write", "x.json"}));
  const TemporaryDirectory directory;
  const std::string path = directory.path() / "there.json";
  write_file_atomically(path, "mine");
  EXPECT_TRUE(refused({"absent.json", "--search", "--cluster", "h100", "--write", path}));
  EXPECT_EQ(read_file(path), "mine");
}

}  // namespace
}  // namespace trireme
