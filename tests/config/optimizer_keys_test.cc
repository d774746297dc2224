// What the section `optimizer` may say.
#include "config/convert.h"
#include "config/fields.h"
#include "config/parse.h"
#include "support.h"

namespace trireme {
namespace {

TEST(OptimizerKeys, groups_of_parameters_say_what_differs_for_them) {
  const LoadedConfig loaded = load_with(
      {R"(optimizer.groups=[{"match":"embed","lr_scale":0.5},{"match":"*","weight_decay":0,"trainable":false}])"});
  EXPECT_TRUE(loaded.problems.empty()) << format_problems(loaded.problems);
  const ParamGroups expected = {{"embed", 0.5, std::nullopt, true}, {"*", 1, 0, false}};
  EXPECT_EQ(loaded.config.optimizer.groups, expected);
  EXPECT_EQ(loaded.config.model.groups, expected);
  EXPECT_EQ(find_field("optimizer.groups")->read(loaded.config).dump(),
            R"([{"match":"embed","lr_scale":0.5,"trainable":true},)"
            R"({"match":"*","lr_scale":1.0,"weight_decay":0.0,"trainable":false}])");
  const auto path_of = [](const std::string& groups) {
    return only_problem(load_with({"optimizer.groups=" + groups})).path;
  };
  EXPECT_EQ(path_of(R"([{"match":"a"},{"lr_scale":1}])"), "optimizer.groups[1].match");
  EXPECT_EQ(path_of(R"([{"match":"a","lr_scale":-1}])"), "optimizer.groups[0].lr_scale");
  EXPECT_EQ(path_of(R"([{"match":"a","lr":1}])"), "optimizer.groups[0].lr");
  EXPECT_EQ(path_of(R"([{"match":"a","trainable":1}])"), "optimizer.groups[0].trainable");
  EXPECT_EQ(path_of(R"([{"match":""}])"), "optimizer.groups[0].match");
  EXPECT_EQ(path_of(R"([{"match":")" + std::string(300, '*') + "\"}]"),
            "optimizer.groups[0].match");
  EXPECT_EQ(path_of(R"(["a"])"), "optimizer.groups[0]");
  EXPECT_EQ(path_of(R"({"match":"a"})"), "optimizer.groups");
}

TEST(OptimizerKeys, lion_has_betas_of_its_own_and_no_eps) {
  const RunConfig::Optimizer lion = load_with({"optimizer.kind=lion"}).config.optimizer;
  EXPECT_EQ(lion.betas, (std::array<double, 2>{0.9, 0.99}));
  EXPECT_EQ(lion.eps, std::nullopt);
  EXPECT_EQ(load_with({"optimizer.kind=lion", "optimizer.betas=[0.5,0.6]"}).config.optimizer.betas,
            (std::array<double, 2>{0.5, 0.6}));
  EXPECT_EQ(only_problem(load_with({"optimizer.kind=lion", "optimizer.eps=1e-8"})).path,
            "optimizer.eps");
  const RunConfig::Optimizer adamw = load_with({}).config.optimizer;
  EXPECT_EQ(adamw.betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(adamw.eps, 1e-8);
  // What a run writes is a config of the same run.
  for (const char* kind : {"optimizer.kind=lion", "optimizer.kind=adamw"}) {
    const RunConfig config = load_with({kind, "optimizer.ema=0.99"}).config;
    const LoadedConfig again = parse_run_config(resolved_json(config));
    EXPECT_TRUE(again.problems.empty()) << format_problems(again.problems);
    EXPECT_EQ(again.config.optimizer, config.optimizer);
  }
}

TEST(OptimizerKeys, schedule_free_has_a_constant_rate_and_no_averages_beside_its_own) {
  const std::string kind = "optimizer.kind=schedule-free";
  const RunConfig config = load_with({kind, "lr_schedule.warmup_steps=2"}).config;
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kScheduleFree);
  EXPECT_EQ(config.optimizer.betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(config.optimizer.eps, 1e-8);
  EXPECT_EQ(config.lr_schedule.kind, LrScheduleKind::kConstant);
  EXPECT_TRUE(load_with({kind, "lr_schedule.kind=constant"}).problems.empty());
  for (const char* schedule : {"cosine", "linear", "wsd"}) {
    EXPECT_EQ(only_problem(load_with({kind, std::string("lr_schedule.kind=") + schedule})).path,
              "lr_schedule.kind");
  }
  EXPECT_EQ(only_problem(load_with({kind, "lr_schedule.decay_end_step=3"})).path,
            "lr_schedule.decay_end_step");
  EXPECT_EQ(only_problem(load_with({kind, "optimizer.ema=0.9"})).path, "optimizer.ema");
  const LoadedConfig again = parse_run_config(resolved_json(config));
  EXPECT_TRUE(again.problems.empty()) << format_problems(again.problems);
  EXPECT_EQ(again.config.lr_schedule, config.lr_schedule);
  EXPECT_EQ(again.config.optimizer, config.optimizer);
}

TEST(OptimizerKeys, moments_are_in_fp32_or_in_8_bits) {
  EXPECT_EQ(load_with({}).config.optimizer.state, MomentType::kFp32);
  for (const char* kind : {"adamw", "lion"}) {
    const RunConfig config =
        load_with({"optimizer.state=8bit", std::string("optimizer.kind=") + kind}).config;
    EXPECT_EQ(config.optimizer.state, MomentType::k8bit);
    EXPECT_EQ(parse_run_config(resolved_json(config)).config.optimizer, config.optimizer);
  }
  EXPECT_EQ(only_problem(load_with({"optimizer.state=uint8"})).nearest, "\"8bit\"");
  EXPECT_EQ(only_problem(load_with({"optimizer.kind=adamw_bnb_8bit"})).nearest, "\"adamw\"");
}

TEST(OptimizerKeys, lion_of_other_systems_keeps_what_it_has) {
  const auto optimizer = [](const char* text) {
    return *convert_config(text, "arguments", std::nullopt).config.find("optimizer");
  };
  const Json deepspeed = optimizer(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {
      "type": "FusedLion", "params": {"lr": 1e-4, "weight_decay": 0.2}}})");
  EXPECT_EQ(*deepspeed.find("kind"), Json("lion"));
  EXPECT_EQ(*deepspeed.find("betas"), Json(Json::Array{0.9, 0.99}));
  EXPECT_EQ(deepspeed.find("eps"), nullptr);
  const Json megatron = optimizer("--optimizer lion --lr 1e-4 --adam-eps 1e-6 --weight-decay 0.2");
  EXPECT_EQ(*megatron.find("kind"), Json("lion"));
  EXPECT_EQ(megatron.find("betas"), nullptr);
  EXPECT_EQ(megatron.find("eps"), nullptr);
}

}  // namespace
}  // namespace trireme
