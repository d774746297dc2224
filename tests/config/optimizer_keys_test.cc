// What the section `optimizer` may say.
#include <algorithm>

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
  for (const char* kind : {"optimizer.kind=lion", "optimizer.kind=adamw", "optimizer.kind=muon"}) {
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

TEST(OptimizerKeys, muon_s_matrices_have_the_rate_of_all_else_unless_another_is_written) {
  const RunConfig::Optimizer muon =
      load_with({"optimizer.kind=muon", "optimizer.lr=0.25"}).config.optimizer;
  EXPECT_EQ(muon.matrix_lr, 0.25);
  EXPECT_EQ(muon.betas, (std::array<double, 2>{0.9, 0.95}));
  EXPECT_EQ(muon.eps, 1e-8);
  EXPECT_EQ(
      load_with({"optimizer.kind=muon", "optimizer.matrix_lr=0.5"}).config.optimizer.matrix_lr,
      0.5);
  EXPECT_EQ(load_with({}).config.optimizer.matrix_lr, std::nullopt);
  for (const char* kind : {"optimizer.kind=adamw", "optimizer.kind=lion"}) {
    EXPECT_EQ(only_problem(load_with({kind, "optimizer.matrix_lr=0.5"})).path,
              "optimizer.matrix_lr");
  }
  EXPECT_EQ(only_problem(load_with({"optimizer.kind=muon", "optimizer.matrix_lr=-1"})).path,
            "optimizer.matrix_lr");
}

TEST(OptimizerKeys, muon_of_other_systems_has_its_rate_and_says_what_differs) {
  const auto converted = [](const std::string& text) {
    return convert_config(text, "arguments", std::nullopt);
  };
  const auto says = [](const Conversion& conversion, const char* what) {
    return std::any_of(
        conversion.remarks.begin(), conversion.remarks.end(),
        [&](const std::string& remark) { return remark.find(what) != std::string::npos; });
  };
  const std::string same =
      "--lr 1e-4 --muon-momentum 0.95 --muon-use-nesterov --muon-extra-scale-factor 0.2 "
      "--muon-tp-mode duplicated --tensor-model-parallel-size 2 --muon-num-ns-steps 5 ";
  const Conversion as_here = converted("--optimizer muon --muon-fp32-matmul-prec medium " + same);
  const Json& optimizer = *as_here.config.find("optimizer");
  EXPECT_EQ(*optimizer.find("kind"), Json("muon"));
  EXPECT_EQ(*optimizer.find("lr"), Json(1e-4));
  EXPECT_EQ(optimizer.find("matrix_lr"), nullptr);
  EXPECT_FALSE(says(as_here, "muon"));
  EXPECT_TRUE(as_here.unknown.empty());
  const Conversion other =
      converted("--optimizer dist_muon --lr 1e-4 --tensor-model-parallel-size 2");
  EXPECT_EQ(*other.config.find("optimizer")->find("matrix_lr"), Json(1e-4 / 0.2));
  for (const char* remark :
       {"--weight-decay", "--muon-momentum 0.9", "Nesterov", "--muon-tp-mode blockwise"})
    EXPECT_TRUE(says(other, remark)) << remark;
  const Conversion far = converted("--optimizer muon --muon-scale-mode unit_rms_norm " + same +
                                   "--muon-num-ns-steps 6 --muon-no-split-qkv "
                                   "--muon-scalar-optimizer lion --muon-coefficient-type aol");
  EXPECT_EQ(far.config.find("optimizer")->find("matrix_lr"), nullptr);
  for (const char* remark : {"unit_rms_norm", "ns-steps 6", "split-qkv", "lion", "aol"})
    EXPECT_TRUE(says(far, remark)) << remark;
  const Conversion deepspeed =
      converted(R"({"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "Muon",
      "params": {"lr": 0.02, "adam_lr": 1e-4, "momentum": 0.9, "weight_decay": 0.2}}})");
  EXPECT_EQ(*deepspeed.config.find("optimizer")->find("kind"), Json("muon"));
  EXPECT_EQ(*deepspeed.config.find("optimizer")->find("lr"), Json(1e-4));
  EXPECT_EQ(deepspeed.config.find("optimizer")->find("matrix_lr"), nullptr);
  EXPECT_TRUE(says(deepspeed, "optimizer.matrix_lr is left out"));
  EXPECT_TRUE(says(deepspeed, "optimizer.params.momentum 0.9"));
}

TEST(OptimizerKeys, adafactor_has_neither_betas_nor_eps) {
  const std::string kind = "optimizer.kind=adafactor";
  const RunConfig config = load_with({kind}).config;
  EXPECT_EQ(config.optimizer.kind, OptimizerKind::kAdafactor);
  EXPECT_EQ(config.optimizer.betas, std::nullopt);
  EXPECT_EQ(config.optimizer.eps, std::nullopt);
  EXPECT_EQ(only_problem(load_with({kind, "optimizer.betas=[0.9,0.95]"})).path, "optimizer.betas");
  EXPECT_EQ(only_problem(load_with({kind, "optimizer.eps=1e-8"})).path, "optimizer.eps");
  const LoadedConfig again = parse_run_config(resolved_json(config));
  EXPECT_TRUE(again.problems.empty()) << format_problems(again.problems);
  EXPECT_EQ(again.config.optimizer, config.optimizer);
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
