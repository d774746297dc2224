#include "plan/search.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>

#include "config/parse.h"
#include "pipeline/schedules/schedules.h"
#include "plan/layout_bounds.h"
#include "plan/search_answers.h"
#include "support/small_config.h"

namespace trireme {
namespace {

Cluster small_cluster(DeviceKind kind) {
  Cluster cluster;
  cluster.devices_per_node = 2;
  cluster.device.kind = kind;
  cluster.device.tflops = {1, 2, 4};
  cluster.device.bytes_per_second = 1e11;
  cluster.node = {1e10, 1e-6};
  cluster.network = {1e9, 1e-5};
  return cluster;
}

LayoutTask task_of(const RunConfig& config, std::int64_t world, DeviceKind kind) {
  LayoutTask task;
  task.config = config;
  task.config.batch = {};
  task.config.batch.global = 4;
  task.cluster = small_cluster(kind);
  task.input.world = world;
  task.input.device = kind;
  return task;
}

void limit_memory(LayoutTask& task, std::int64_t bytes) {
  task.memory = bytes;
  if (task.input.device == DeviceKind::kCuda) task.input.node = {2, bytes};
}

RunConfig small_mixtral() {
  return small_config(parse_json(
      R"({"model_type":"mixtral","hidden_size":64,"num_attention_heads":4,"num_key_value_heads":2,
          "intermediate_size":64,"vocab_size":257,"num_local_experts":2,"num_experts_per_tok":2,
          "max_position_embeddings":64,"num_hidden_layers":2})",
      "model"));
}

using Visit = std::function<void(const LayoutChoice&, const TimedLayout&)>;

void visit_schedules(const LayoutTask& task, LayoutChoice choice, const Visit& visit) {
  RunConfig config = task.config;
  for (const std::string& name : schedule_names()) {
    for (std::int64_t stages = 1; stages <= 4; ++stages) {
      const bool interleaved = name == "interleaved";
      if (interleaved ? stages == 1 : stages > 1) continue;
      if (choice.pipeline == 1 && name != "1f1b") continue;
      choice.schedule = name;
      choice.virtual_stages = interleaved ? std::optional(stages) : std::nullopt;
      take_choice(choice, task.config.batch.global->largest(), config);
      std::vector<Problem> problems;
      if (const auto layout = time_layout(task, config, problems)) visit(choice, *layout);
    }
  }
}

/// Every layout, without the code that looks for them: numbers up to the world and the batch.
void visit_all(const LayoutTask& task, const Visit& visit) {
  const std::int64_t world = task.input.world, global = task.config.batch.global->largest();
  const bool experts = task.config.model.has_experts();
  LayoutChoice choice;
  const auto each = [](std::int64_t& value, std::int64_t most, const std::function<void()>& body) {
    for (value = 1; value <= most; ++value) body();
    value = 1;
  };
  const auto with_mesh = [&] {
    if (world % (choice.tensor * choice.context * choice.pipeline) != 0) return;
    for (const ContextMethod method :
         {ContextMethod::kRing, ContextMethod::kAllGather, ContextMethod::kUlysses}) {
      if (choice.context == 1 && method != ContextMethod::kRing) continue;
      choice.context_method = method;
      each(choice.micro, global, [&] {
        for (const Recompute recompute :
             {Recompute::kNone, Recompute::kSelective, Recompute::kFull}) {
          choice.recompute = recompute;
          for (choice.zero_stage = 0; choice.zero_stage <= 3; ++choice.zero_stage)
            visit_schedules(task, choice, visit);
        }
      });
    }
  };
  each(choice.tensor, world, [&] {
    each(choice.context, world, [&] {
      each(choice.pipeline, world, [&] {
        each(choice.expert, experts ? world : 1,
             [&] { each(choice.expert_tensor, experts ? choice.tensor : 1, with_mesh); });
      });
    });
  });
}

struct Best {
  double seconds = 1e30;
  std::int64_t bytes_most = 0, bytes_least = std::int64_t{1} << 60;
  int layouts = 0;
};

/// By looking at all of them; each bound is beside what it bounds.
Best best_of_all(const LayoutTask& task) {
  Best best;
  LayoutBounds bounds(task);
  visit_all(task, [&](const LayoutChoice& choice, const TimedLayout& layout) {
    const ScheduleKind kind = *schedule_kind(choice.schedule);
    const bool may_split = kind != ScheduleKind::kGpipe && kind != ScheduleKind::kOneFOneB &&
                           kind != ScheduleKind::kInterleaved;
    const double seconds = layout.step.seconds;
    const auto name = [&] {
      return parallel_json(choice).dump() + " micro " + std::to_string(choice.micro);
    };
    EXPECT_LE(bounds.shape_seconds(choice), seconds) << name();
    EXPECT_LE(bounds.seconds(choice, may_split).value_or(1e30), seconds) << name();
    EXPECT_LE(bounds.shape_bytes(choice, choice.zero_stage), layout.bytes()) << name();
    EXPECT_LE(bounds.bytes(choice, may_split), layout.bytes()) << name();
    ++best.layouts;
    best.bytes_most = std::max(best.bytes_most, layout.bytes());
    best.bytes_least = std::min(best.bytes_least, layout.bytes());
    if (task.memory == 0 || layout.bytes() <= task.memory)
      best.seconds = std::min(best.seconds, seconds);
  });
  return best;
}

/// Where so much memory is there; 0: any.
void expect_best_is_found(LayoutTask task, std::int64_t memory) {
  if (memory > 0) limit_memory(task, memory);
  const Best all = best_of_all(task);
  EXPECT_GT(all.layouts, 20);
  EXPECT_LT(all.bytes_least, memory == 0 ? all.bytes_most : memory);
  EXPECT_GE(all.bytes_most, memory);
  const SearchResult found = search_layouts(task);
  ASSERT_FALSE(found.best.empty());
  EXPECT_TRUE(found.bounded && found.all_schedules);
  EXPECT_NEAR(found.best.front().step.seconds, all.seconds, 1e-9 * all.seconds);
  for (const TimedLayout& layout : found.best) EXPECT_TRUE(memory == 0 || layout.bytes() <= memory);
  limit_memory(task, all.bytes_least - 1);
  EXPECT_TRUE(search_layouts(task).best.empty());
}

/// What the config needs where it recomputes.
std::int64_t tight_memory(const LayoutTask& task, const LayoutChoice& choice) {
  RunConfig config = task.config;
  take_choice(choice, task.config.batch.global->largest(), config);
  std::vector<Problem> problems;
  return time_layout(task, config, problems).value().bytes();
}

TEST(Search, finds_the_best_of_all_layouts_and_no_bound_exceeds_what_it_bounds) {
  const LayoutTask task = task_of(small_config(4), 4, DeviceKind::kCuda);
  LayoutChoice choice;
  choice.tensor = choice.pipeline = 2;
  choice.recompute = Recompute::kFull;
  expect_best_is_found(task, tight_memory(task, choice));
}
TEST(Search, finds_the_best_of_all_layouts_on_cpus) {
  const LayoutTask task = task_of(small_config(2), 2, DeviceKind::kCpu);
  expect_best_is_found(task, 0);
  LayoutChoice choice;
  choice.pipeline = 2;
  expect_best_is_found(task, tight_memory(task, choice));
}
TEST(Search, finds_the_best_of_all_layouts_of_experts) {
  const LayoutTask task = task_of(small_mixtral(), 2, DeviceKind::kCuda);
  LayoutChoice choice;
  choice.expert = 2;
  choice.zero_stage = 1;
  expect_best_is_found(task, tight_memory(task, choice));
}

TEST(Search, the_front_holds_less_and_less) {
  LayoutTask task = task_of(small_config(4), 8, DeviceKind::kCuda);
  const SearchResult found = search_layouts(task);
  ASSERT_GT(found.front.size(), 1U);
  EXPECT_EQ(found.front.front().choice, found.best.front().choice);
  for (std::size_t i = 1; i < found.front.size(); ++i) {
    EXPECT_GE(found.front[i].step.seconds, found.front[i - 1].step.seconds);
    EXPECT_LT(found.front[i].bytes(), found.front[i - 1].bytes());
  }
  for (std::size_t i = 1; i < found.best.size(); ++i)
    EXPECT_GE(found.best[i].step.seconds, found.best[i - 1].step.seconds);
}

TEST(Search, a_choice_is_written_into_a_config_and_read_from_it) {
  LayoutChoice choice;
  choice.tensor = 2;
  choice.pipeline = 4;
  choice.schedule = "interleaved";
  choice.virtual_stages = 3;
  choice.micro = 2;
  choice.zero_stage = 1;
  choice.recompute = Recompute::kFull;
  Json given = parse_json(
      R"({"run":{"directory":"r","steps":1},"model":{"model_type":"llama","num_hidden_layers":12},
          "data":{"train":"synthetic","sequence_length":32},"optimizer":{"lr":1e-3},
          "batch":{"micro":4,"accumulation":4},
          "parallel":{"data":8,"context":2,"pipeline_layers":[6,6],"sequence_parallel":false}})",
      "given");
  take_choice(choice, 64, given);
  const LoadedConfig loaded = parse_run_config(given);
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  EXPECT_EQ(choice_of(loaded.config, 2), choice);
  EXPECT_EQ(loaded.config.batch.global, 64);
  EXPECT_FALSE(loaded.config.batch.accumulation || loaded.config.parallel.data);
  EXPECT_EQ(loaded.config.parallel.sequence_parallel, false);  // not search's
  RunConfig config;
  take_choice(choice, 64, config);
  EXPECT_EQ(choice_of(config, 2), choice);
}

/// A config of configs/ on a named cluster.
LayoutTask named_task(const std::string& file, std::int64_t world) {
  LoadedConfig loaded = read_run_config({{TRIREME_CONFIGS "/" + file}, {}});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  LayoutTask task;
  std::vector<Problem> problems;
  task.config = loaded.config;
  task.cluster = read_cluster("h100", problems);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  task.input.world = world;
  task.input.device = DeviceKind::kCuda;
  limit_memory(task, task.cluster.device.memory_bytes);
  task.input.node.ranks = task.cluster.devices_per_node;
  return task;
}

TEST(Search, is_no_slower_than_the_layout_of_a_config) {
  const LayoutTask task = named_task("llama3/llama3.1_8b_64gpu.json", 64);
  std::vector<Problem> problems;
  const auto own = time_layout(task, task.config, problems);
  ASSERT_TRUE(own) << format_problems(problems);
  const SearchResult found = search_layouts(task, 1);
  ASSERT_FALSE(found.best.empty());
  EXPECT_LE(found.best.front().step.seconds, own->step.seconds);
  EXPECT_LE(found.best.front().bytes(), task.memory);
}

TEST(Search, a_published_layout_is_among_those_that_are_looked_at) {
  // MLPerf Training v5.0, Llama 3.1 405B on 512 H100.
  LayoutTask task = named_task("llama3/llama3.1_405b_512gpu.json", 512);
  task.config.batch = {};
  task.config.batch.global = 1152;
  LayoutChoice choice;
  choice.tensor = 4;
  choice.context = 2;
  choice.pipeline = 8;
  choice.schedule = "1f1b";
  choice.zero_stage = 1;
  std::vector<LayoutChoice> shapes = layout_shapes(task);
  EXPECT_TRUE(std::any_of(shapes.begin(), shapes.end(), [&](const LayoutChoice& shape) {
    return shape.tensor == 4 && shape.context == 2 && shape.pipeline == 8 && shape.micro == 1;
  }));
  take_choice(choice, 1152, task.config);
  std::vector<Problem> problems;
  const auto published = time_layout(task, task.config, problems);
  ASSERT_TRUE(published) << format_problems(problems);
  LayoutBounds bounds(task);
  EXPECT_LE(bounds.seconds(choice, false).value(), published->step.seconds);
  EXPECT_GT(bounds.seconds(choice, false).value(), 0.9 * published->step.seconds);
  EXPECT_NEAR(bounds.played_seconds(choice), published->step.seconds,
              1e-9 * published->step.seconds);
}

TEST(SearchAnswers, trials_change_one_key_each) {
  LayoutTask task = task_of(small_config(4), 4, DeviceKind::kCuda);
  task.config.parallel.tensor = 2;
  std::vector<Problem> problems;
  const auto own = time_layout(task, task.config, problems);
  ASSERT_TRUE(own);
  std::vector<std::string> changes;
  for (const Trial& trial : trials_of(task)) {
    changes.push_back(trial.change);
    ASSERT_TRUE(trial.layout) << trial.refused;
    if (trial.change == "parallel.zero_stage 3") {
      EXPECT_LT(trial.layout->bytes(), own->bytes());
    }
    if (trial.change == "parallel.recompute \"full\"") {
      EXPECT_GT(trial.layout->step.compute, own->step.compute);
    }
  }
  EXPECT_EQ(changes, (std::vector<std::string>{
                         "parallel.recompute \"selective\"", "parallel.recompute \"full\"",
                         "parallel.zero_stage 1", "parallel.zero_stage 2", "parallel.zero_stage 3",
                         "precision.compute \"fp8\""}));
}

TEST(SearchAnswers, the_largest_micro_batch_fits_and_the_next_does_not) {
  LayoutTask task = task_of(small_config(2), 2, DeviceKind::kCuda);
  task.config.batch.global = 64;
  RunConfig four = task.config, eight = task.config;
  four.batch.micro = 4;
  eight.batch.micro = 8;
  std::vector<Problem> problems;
  const std::int64_t fits = time_layout(task, four, problems)->bytes();
  ASSERT_GT(time_layout(task, eight, problems)->bytes(), fits);
  limit_memory(task, fits);
  EXPECT_EQ(largest_micro_batch(task).value().batch.micro, 4);
  limit_memory(task, 1);
  EXPECT_FALSE(largest_micro_batch(task));
}

TEST(SearchAnswers, the_fewest_ranks_hold_the_model_and_fewer_do_not) {
  LayoutTask task = task_of(small_config(8), 1, DeviceKind::kCuda);
  task.config.parallel.nccl_max_ctas = 1;
  task.input.world = 8;
  const std::int64_t limit = frugal_layout(task).value().bytes() * 5 / 4;
  limit_memory(task, limit);
  const auto fewest = fewest_ranks(task, 64);
  ASSERT_TRUE(fewest);
  EXPECT_LE(fewest->bytes(), limit);
  LayoutTask fewer = task;
  for (fewer.input.world = 1; fewer.input.world < fewest->mesh.size(); ++fewer.input.world) {
    const bool whole_nodes = fewer.input.world < 2 || fewer.input.world % 2 == 0;
    EXPECT_TRUE(!whole_nodes || search_layouts(fewer, 1).best.empty()) << fewer.input.world;
  }
  limit_memory(task, 1);
  EXPECT_FALSE(fewest_ranks(task, 16));
}

}  // namespace
}  // namespace trireme
