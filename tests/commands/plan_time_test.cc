#include "commands/plan_time.h"

#include <gtest/gtest.h>

#include "model/flops.h"
#include "support/small_config.h"

namespace trireme {
namespace {

struct Planned {
  Cluster cluster;
  PlannedTime time;
};

Planned planned(Cluster cluster, std::int64_t world = 16) {
  RunConfig config = small_config();
  config.run.device = DeviceChoice::kCuda;
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  config.batch.accumulation = 4;
  ResolveInput input;
  input.world = world;
  input.device = DeviceKind::kCuda;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
  const ResolvedRun run = resolve_run(config, input, problems, notes);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  const std::int64_t flops = model_flops_per_token(config.model, config.data.sequence_length);
  return {cluster, plan_time(config, run, cluster, flops)};
}

Cluster named(const char* name) {
  std::vector<Problem> problems;
  Cluster cluster = read_cluster(name, problems);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  return cluster;
}

double sum_of(const Json& object) {
  double sum = 0;
  for (const auto& [key, value] : object.as_object()) sum += value.as_double();
  return sum;
}

TEST(PlanTime, json_has_the_numbers_that_the_contract_names) {
  const Planned plan = planned(named("h100"));
  const Json time = time_json(plan.time), run = run_json(plan.time);
  const auto number = [](const Json& json, const char* key) { return json.find(key)->as_double(); };
  const double step = number(time, "step_seconds");
  EXPECT_NEAR(step,
              number(time, "compute") + number(time, "host") + number(time, "bubble") +
                  number(time, "optimizer") + sum_of(*time.find("exposed")),
              1e-9 * step);
  // 2 sequences of 32 tokens, 4 micro-batches, 4 data ranks; 10 steps.
  EXPECT_NEAR(number(time, "tokens_per_second"), 1024 / step, 1e-6 / step);
  EXPECT_DOUBLE_EQ(number(run, "tokens"), 10240);
  EXPECT_NEAR(number(run, "device_hours"), 16 * 10 * step / 3600, 1e-12);
  EXPECT_NEAR(number(time, "mfu"), number(run, "flops") / (10 * step * 16 * 989.4e12), 1e-12);
  EXPECT_TRUE(run.find("cost")->is_null());
  EXPECT_TRUE(run.find("kwh")->is_number());
  EXPECT_GT(run.find("storage_bytes")->as_integer(), 0);
}

TEST(PlanTime, money_is_printed_where_there_are_prices) {
  Cluster cluster = named("h100");
  EXPECT_EQ(time_text(planned(cluster).time, cluster).find("Cost"), std::string::npos);
  cluster.price = {2.0, 0.1, 0.02};
  const Planned plan = planned(cluster);
  const std::string text = time_text(plan.time, plan.cluster);
  for (const char* word :
       {"Cost: ", "Storage: ", "Energy: ", "10^9 tokens", "Assumed: cluster h100"})
    EXPECT_NE(text.find(word), std::string::npos) << word << "\n" << text;
  EXPECT_NEAR(plan.time.cost.cost.value(),
              2 * plan.time.cost.device_hours + 0.1 * plan.time.cost.kwh.value(), 1e-12);
}

TEST(PlanTime, a_config_takes_the_clusters_devices_or_contradicts_them) {
  RunConfig config = small_config();
  std::vector<Problem> problems;
  take_cluster("h100", config, problems);
  EXPECT_TRUE(problems.empty());
  EXPECT_EQ(config.run.device, DeviceChoice::kCuda);
  config.run.device = DeviceChoice::kCpu;
  take_cluster("h100", config, problems);
  ASSERT_EQ(problems.size(), 1);
  EXPECT_EQ(problems.front().path, "run.device");
}

}  // namespace
}  // namespace trireme
