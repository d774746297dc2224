#include "plan/resolve.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "config/model_parse.h"
#include "config/parse.h"
#include "plan/memory.h"
#include "support/small_config.h"

namespace trireme {
namespace {

struct Outcome {
  ResolvedRun run;
  std::vector<Problem> problems;
  std::vector<std::string> notes;
};

Outcome resolve(const RunConfig& config, const ResolveInput& input) {
  Outcome outcome;
  outcome.run = resolve_run(config, input, outcome.problems, outcome.notes);
  return outcome;
}

Problem only_problem(const Outcome& outcome) {
  EXPECT_EQ(outcome.problems.size(), 1U) << format_problems(outcome.problems);
  return outcome.problems.empty() ? Problem{} : outcome.problems[0];
}

struct BatchCase {
  RunConfig::Batch given;
  std::int64_t data;
  ResolvedBatch expected;
};

TEST(Resolve, a_run_whose_tokens_cannot_be_counted_is_refused) {
  RunConfig config = small_config();
  config.run.steps = std::int64_t{1} << 53;
  config.batch.micro = 1;
  config.data.sequence_length = 4;
  EXPECT_TRUE(resolve(config, {}).problems.empty());
  config.data.sequence_length = 1 << 12;
  EXPECT_EQ(only_problem(resolve(config, {})).path, "run.steps");
  config.run.steps.reset();
  config.run.epochs = 1e9;
  EXPECT_EQ(only_problem(resolve(config, {.windows = 1'000'000})).path, "run.epochs");
}

TEST(Resolve, a_trace_of_steps_that_the_run_does_not_have_is_told) {
  RunConfig config = small_config();
  config.run.steps = 6;
  config.batch.micro = 1;
  config.log.trace_steps = {6, 9};
  EXPECT_EQ(resolve(config, {}).notes.size(), 0U);
  config.log.trace_steps = {7, 9};
  const Outcome outcome = resolve(config, {});
  EXPECT_TRUE(outcome.problems.empty()) << format_problems(outcome.problems);
  ASSERT_EQ(outcome.notes.size(), 1U);
  EXPECT_TRUE(outcome.notes.front().starts_with("log.trace_steps: the run of 6 steps"));
}

TEST(Resolve, work_that_ranks_repeat_on_whole_matrices_is_told) {
  RunConfig config = small_config();
  config.batch.micro = 1;
  const auto notes = [&](std::int64_t world, std::int64_t zero_stage, OptimizerKind kind) {
    config.parallel.zero_stage = zero_stage;
    config.optimizer.kind = kind;
    const Outcome outcome = resolve(config, {.world = world});
    EXPECT_TRUE(outcome.problems.empty()) << format_problems(outcome.problems);
    return outcome.notes;
  };
  EXPECT_EQ(notes(1, 0, OptimizerKind::kMuon).size(), 0U);
  EXPECT_EQ(notes(2, 0, OptimizerKind::kAdamW).size(), 0U);
  EXPECT_EQ(notes(2, 1, OptimizerKind::kMuon).size(), 0U);
  ASSERT_EQ(notes(2, 0, OptimizerKind::kMuon).size(), 1U);
  EXPECT_TRUE(notes(2, 0, OptimizerKind::kMuon)
                  .front()
                  .starts_with("optimizer.kind: 2 ranks orthogonalise the same"));
}

TEST(Resolve, adapters_at_fault_are_not_laid_out) {
  for (const char* fault : {R"({"rank": 2, "base": "nf4"})", R"({"rank": 2, "alpha": -1})"}) {
    Json json = parse_json(R"({"run": {"directory": "r", "steps": 1},
        "model": {"model_type": "llama", "hidden_size": 64, "num_attention_heads": 2,
                  "intermediate_size": 64, "vocab_size": 64, "num_hidden_layers": 2},
        "data": {"train": "synthetic", "sequence_length": 16}, "batch": {"micro": 1},
        "init": {"weights": "base"}, "optimizer": {"lr": 0.001},
        "precision": {"compute": "fp8"}, "parallel": {"pipeline": 2}})",
                           "test");
    json["lora"] = parse_json(fault, "test");
    LoadedConfig loaded = parse_run_config(json);
    ASSERT_EQ(loaded.problems.size(), 1U) << format_problems(loaded.problems);
    resolve_run(loaded.config, {.world = 2}, loaded.problems, loaded.notes);
    EXPECT_EQ(loaded.problems.size(), 1U) << format_problems(loaded.problems);
    EXPECT_TRUE(loaded.problems.front().path.starts_with("lora."));
  }
}

TEST(Resolve, a_zero_bubble_schedule_that_comes_to_1f1b_says_so) {
  const auto notes_of = [](const char* schedule, double limit, Recompute recompute) {
    RunConfig config = small_config();
    config.parallel.pipeline = 2;
    config.parallel.pipeline_schedule = schedule;
    if (limit > 0) config.parallel.pipeline_memory_limit = limit;
    config.parallel.recompute = recompute;
    config.batch = {.global = 8, .micro = 1, .accumulation = {}};
    const Outcome outcome = resolve(config, {.world = 2});
    EXPECT_TRUE(outcome.problems.empty()) << format_problems(outcome.problems);
    std::string text;
    for (const std::string& note : outcome.notes) text += note + "\n";
    return text;
  };
  // Recomputed, a micro-batch keeps one layer input until B and all that W reads behind it.
  const std::string note = notes_of("zb-h1", 0, Recompute::kFull);
  EXPECT_NE(note.find("zb-h1 is exactly 1f1b here"), std::string::npos) << note;
  EXPECT_NE(note.find("parallel.pipeline_memory_limit"), std::string::npos) << note;
  EXPECT_EQ(notes_of("1f1b", 0, Recompute::kFull), "");
  EXPECT_EQ(notes_of("zb-h2", 0, Recompute::kNone), "") << "it holds back Ws";
  EXPECT_EQ(notes_of("zb-auto", 6, Recompute::kNone), "") << "there is room";
}

TEST(Resolve, what_is_balanced_over_a_step_takes_one_pass) {
  RunConfig config = small_config();
  config.moe.scope = BalanceScope::kGlobal;
  config.batch = {.global = 8, .micro = 4, .accumulation = {}};
  EXPECT_TRUE(resolve(config, {.world = 2}).problems.empty());
  const Problem problem = only_problem(resolve(config, {}));
  EXPECT_EQ(problem.path, "moe.scope");
  EXPECT_EQ(problem.legal, "\"sequence\", or batch.accumulation 1");
  EXPECT_EQ(problem.message,
            "counts the tokens of a whole step, which are known after the first of its 2 backward "
            "passes only");
  config.moe.scope = BalanceScope::kSequence;
  EXPECT_TRUE(resolve(config, {}).problems.empty());
}

TEST(Resolve, a_model_whose_heads_no_op_takes_is_refused) {
  const auto refused_at = [](const char* keys) {
    RunConfig config = small_config();
    config.model = model_of(keys);
    const Outcome outcome = resolve(config, {});
    return outcome.problems.empty() ? "" : only_problem(outcome).path;
  };
  EXPECT_EQ(refused_at(R"({"model_type":"gpt2","n_embd":512,"n_head":2})"), "");
  EXPECT_EQ(refused_at(R"({"model_type":"gpt2","n_embd":516,"n_head":2})"), "model.n_head");
  EXPECT_EQ(refused_at(R"({"model_type":"gpt2","n_embd":15,"n_head":3})"), "model.n_head");
  EXPECT_EQ(refused_at(R"({"model_type":"llama","num_attention_heads":8})"), "model.head_dim");
}

TEST(Resolve, a_model_that_is_not_generated_from_is_refused_where_samples_are_asked_for) {
  const auto refused_at = [](int kv_rank, std::vector<std::string> samples) {
    RunConfig config = small_config();
    config.model = model_of(fmt::format(
        R"({{"model_type":"deepseek_v3","kv_lora_rank":{},"qk_nope_head_dim":8,
            "qk_rope_head_dim":4,"v_head_dim":8,"hidden_size":64,"num_attention_heads":2,
            "num_key_value_heads":2}})",
        kv_rank));
    config.evaluation.samples = std::move(samples);
    const Outcome outcome = resolve(config, {});
    return outcome.problems.empty() ? "" : only_problem(outcome).path;
  };
  for (const int served : {2, 33 + 1, 1020}) EXPECT_EQ(refused_at(served, {"a"}), "") << served;
  for (const int rank : {1, 33, 1022}) {
    EXPECT_EQ(refused_at(rank, {}), "") << rank;
    EXPECT_EQ(refused_at(rank, {"a"}), "model.kv_lora_rank") << rank;
  }
}

class LegalBatch : public testing::TestWithParam<BatchCase> {};

TEST_P(LegalBatch, two_give_the_third) {
  std::vector<Problem> problems;
  EXPECT_EQ(resolve_batch(GetParam().given, GetParam().data, problems), GetParam().expected);
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
}

constexpr auto kNone = std::nullopt;
INSTANTIATE_TEST_SUITE_P(Batch, LegalBatch,
                         testing::Values(BatchCase{{kNone, 4, kNone}, 1, {4, 4, 1, 1}},
                                         BatchCase{{kNone, 4, kNone}, 3, {12, 4, 1, 3}},
                                         BatchCase{{12, kNone, kNone}, 3, {12, 1, 4, 3}},
                                         BatchCase{{24, 4, kNone}, 3, {24, 4, 2, 3}},
                                         BatchCase{{24, kNone, 2}, 3, {24, 4, 2, 3}},
                                         BatchCase{{kNone, 4, 2}, 3, {24, 4, 2, 3}},
                                         BatchCase{{24, 4, 2}, 3, {24, 4, 2, 3}}));

TEST(Batch, numbers_that_do_not_divide_are_refused_with_the_nearest_legal_ones) {
  std::vector<Problem> problems;
  resolve_batch({16, 4, kNone}, 3, problems);
  resolve_batch({5, kNone, kNone}, 3, problems);
  resolve_batch({2, kNone, kNone}, 3, problems);
  resolve_batch({20, kNone, 4}, 2, problems);
  resolve_batch({25, 4, 2}, 3, problems);
  ASSERT_EQ(problems.size(), 5U);
  for (const Problem& problem : problems) EXPECT_EQ(problem.path, "batch.global");
  EXPECT_EQ(problems[0].nearest, "12 or 24");
  EXPECT_EQ(problems[1].nearest, "3 or 6");
  EXPECT_EQ(problems[2].nearest, "3");
  EXPECT_EQ(problems[3].nearest, "16 or 24");
  EXPECT_EQ(problems[4].nearest, "24");
  EXPECT_NE(problems[0].legal.find("4 x 3 = 12"), std::string::npos);
}

TEST(Batch, each_size_of_a_ramp_must_divide) {
  std::vector<Problem> problems;
  const GlobalBatch ramp({{0, 8}, {100, 24}, {900, 16}});
  EXPECT_EQ(resolve_batch({ramp, 4, kNone}, 2, problems), (ResolvedBatch{24, 4, 3, 2}));
  EXPECT_TRUE(problems.empty()) << format_problems(problems);
  resolve_batch({ramp, 4, kNone}, 4, problems);
  ASSERT_EQ(problems.size(), 2U) << format_problems(problems);
  EXPECT_EQ(problems[0].path, "batch.global[0][1]");
  EXPECT_EQ(problems[0].found, "8");
  EXPECT_EQ(problems[0].nearest, "16");
  EXPECT_EQ(problems[1].path, "batch.global[1][1]");
  EXPECT_EQ(problems[1].nearest, "16 or 32");
}

TEST(Batch, a_ramp_is_of_the_largest_and_has_a_schedule_of_each_size) {
  RunConfig config = small_config();
  config.batch = {
      .global = GlobalBatch({{0, 4}, {1000, 16}, {9000, 8}}), .micro = 1, .accumulation = {}};
  config.parallel.pipeline = 2;
  config.parallel.pipeline_schedule = "zb-h1";
  const Outcome outcome = resolve(config, {.world = 4});
  ASSERT_TRUE(outcome.problems.empty()) << format_problems(outcome.problems);
  EXPECT_EQ(outcome.run.batch, (ResolvedBatch{16, 1, 8, 2}));
  ASSERT_EQ(outcome.run.pipeline.steps.size(), 3U);
  for (std::size_t i = 0; i < 3; ++i) {
    const StepPlan& step = outcome.run.pipeline.steps[i];
    EXPECT_EQ(step.micro_batches, std::vector<std::int64_t>({8, 4, 2})[i]);
    EXPECT_EQ(shape_of(step.schedule).micro_batches, step.micro_batches);
    EXPECT_EQ(step.program.ranks.size(), 2U);
  }
  EXPECT_EQ(with_defaults_written(config, outcome.run).batch.global, config.batch.global);
  EXPECT_EQ(outcome.run.samples(), outcome.run.ramp.advance(0, 10));
}

/// Of a rank's stage in a run whose batch is this.
std::int64_t activations(const GlobalBatch& batch, const char* schedule, int rank) {
  RunConfig config = small_config();
  config.batch = {.global = batch, .micro = 1, .accumulation = {}};
  config.parallel.pipeline = 2;
  config.parallel.pipeline_schedule = schedule;
  const Outcome outcome = resolve(config, {.world = 2});
  EXPECT_TRUE(outcome.problems.empty()) << format_problems(outcome.problems);
  return estimate_memory(config.model,
                         memory_request(config, outcome.run, StagePurpose::kTraining, rank))
      .activations;
}

TEST(Batch, a_ramp_keeps_the_activations_of_the_size_that_needs_most) {
  for (const char* schedule : {"1f1b", "gpipe", "zb-h1", "zb-auto"}) {
    for (const int rank : {0, 1}) {
      const std::int64_t small = activations(2, schedule, rank),
                         large = activations(12, schedule, rank);
      EXPECT_EQ(activations(GlobalBatch({{0, 2}, {900, 12}, {9000, 4}}), schedule, rank),
                std::max(small, large))
          << schedule << " " << rank;
      if (schedule == std::string("gpipe")) {
        EXPECT_GT(large, small);
      }
    }
  }
}

TEST(Batch, a_product_beyond_counting_is_refused) {
  std::vector<Problem> problems;
  resolve_batch({kNone, 1000000000, 1000000000}, 1000000, problems);
  ASSERT_EQ(problems.size(), 1U);
  EXPECT_EQ(problems[0].path, "batch");
}

TEST(Steps, come_from_steps_tokens_or_epochs) {
  RunConfig config = small_config();
  std::vector<Problem> problems;
  EXPECT_EQ(resolve_steps(config, 4, kNone, problems), 10);
  config.run.steps.reset();
  config.run.tokens = 4 * 32 * 5;
  EXPECT_EQ(resolve_steps(config, 4, kNone, problems), 5);
  config.run.tokens = 4 * 32 * 5 + 1;
  EXPECT_EQ(resolve_steps(config, 4, kNone, problems), 6);
  config.run.tokens.reset();
  config.run.epochs = 1.5;
  EXPECT_EQ(resolve_steps(config, 4, 11, problems), 4);
  EXPECT_EQ(resolve_steps(config, 400, 11, problems), 1);
  EXPECT_EQ(resolve_steps(config, 4, kNone, problems), 0);
  // 4, 4 and then 10 samples a step.
  const BatchRamp ramp(GlobalBatch({{0, 4}, {5 * 32, 10}}), 32);
  EXPECT_EQ(resolve_steps(config, ramp, 11, problems), 2) << "16 windows, and 18 with a third";
  EXPECT_EQ(resolve_steps(config, ramp, 12, problems), 3);
  config.run.epochs.reset();
  config.run.tokens = 18 * 32 + 1;
  EXPECT_EQ(resolve_steps(config, ramp, kNone, problems), 4);
  config.run.tokens.reset();
  EXPECT_TRUE(problems.empty());
  config.run.epochs = 1e300;
  EXPECT_EQ(resolve_steps(config, 4, 11, problems), 0);
  EXPECT_EQ(problems.size(), 1U);
}

TEST(Resolve, the_mesh_fills_the_world_with_data_ranks) {
  const Outcome outcome = resolve(small_config(), {.world = 6});
  EXPECT_TRUE(outcome.problems.empty());
  EXPECT_EQ(outcome.run.mesh.extent(Axis::kData), 6);
  EXPECT_EQ(outcome.run.mesh.size(), 6);
  EXPECT_EQ(outcome.run.batch, (ResolvedBatch{12, 2, 1, 6}));
  EXPECT_EQ(outcome.run.steps, 10);
}

TEST(Resolve, extents_that_do_not_divide_the_world_are_refused) {
  RunConfig config = small_config();
  config.parallel.tensor = 2;
  config.parallel.pipeline = 2;
  const Problem problem = only_problem(resolve(config, {.world = 6}));
  EXPECT_EQ(problem.path, "parallel");
  EXPECT_EQ(problem.nearest, "4 or 8 ranks");
  EXPECT_EQ(resolve(config, {.world = 8}).run.mesh.extent(Axis::kData), 2);
  EXPECT_EQ(default_world(config), 4);
}

TEST(Resolve, a_data_extent_must_be_what_is_left) {
  RunConfig config = small_config();
  config.parallel.data = 4;
  EXPECT_EQ(default_world(config), 4);
  EXPECT_TRUE(resolve(config, {.world = 4}).problems.empty());
  const Problem problem = only_problem(resolve(config, {.world = 3}));
  EXPECT_EQ(problem.path, "parallel.data");
  EXPECT_EQ(problem.nearest, "3");
}

TEST(Resolve, learned_positions_bound_the_sequence_and_rotary_ones_warn) {
  RunConfig config = small_config();
  config.data.sequence_length = 65;
  const Outcome rope = resolve(config, {});
  EXPECT_TRUE(rope.problems.empty());
  EXPECT_EQ(rope.notes.size(), 1U);
  config.model.learned_positions = true;
  const Problem problem = only_problem(resolve(config, {}));
  EXPECT_EQ(problem.path, "data.sequence_length");
  EXPECT_EQ(problem.nearest, "64");
}

TEST(Resolve, a_schedule_that_cannot_be_is_refused) {
  RunConfig config = small_config();
  config.lr_schedule.warmup_steps = 8;
  config.lr_schedule.decay_end_step = 5;
  EXPECT_EQ(only_problem(resolve(config, {})).path, "lr_schedule.decay_end_step");
  config.lr_schedule = {};
  config.lr_schedule.kind = LrScheduleKind::kWsd;
  config.lr_schedule.decay_steps = 11;
  EXPECT_EQ(only_problem(resolve(config, {})).path, "lr_schedule.decay_steps");
  config.lr_schedule.decay_steps = 5;
  config.lr_schedule.warmup_steps = 8;
  EXPECT_EQ(resolve(config, {}).notes.size(), 1U);
  config.lr_schedule.warmup_steps = 5;
  EXPECT_TRUE(resolve(config, {}).notes.empty());
  config.lr_schedule.warmup_steps = 100;
  EXPECT_EQ(resolve(config, {}).notes.size(), 1U);
}

TEST(Resolve, a_step_that_runs_ahead_of_nobody_is_told) {
  RunConfig config = small_config();
  config.parallel.speculative_step = true;
  EXPECT_EQ(resolve(config, {}).notes.size(), 1U);
  config.parallel.pipeline = 2;
  config.batch.accumulation = 4;
  EXPECT_EQ(resolve(config, {2}).notes.size(), 1U) << "1f1b: the first rank ends last";
  config.parallel.pipeline_schedule = "zb-h2";
  config.parallel.pipeline_memory_limit = 6;  // what waits for its W is more than an activation
  const Outcome outcome = resolve(config, {2});
  EXPECT_TRUE(outcome.notes.empty()) << outcome.notes.front();
  EXPECT_TRUE(outcome.problems.empty());
}

TEST(Resolve, sections_with_faults_are_left_alone) {
  RunConfig config = small_config();
  config.batch = {5, 2, kNone};
  std::vector<Problem> problems = {{"batch.micro", "x", "y", "", "z"}};
  std::vector<std::string> notes;
  resolve_run(config, {}, problems, notes);
  EXPECT_EQ(problems.size(), 1U);
  problems = {{"run.seed", "x", "y", "", "z"}};
  resolve_run(config, {}, problems, notes);
  EXPECT_EQ(problems.size(), 2U);
}

TEST(Resolve, what_is_written_out_resolves_to_the_same_run) {
  for (const LrScheduleKind kind :
       {LrScheduleKind::kCosine, LrScheduleKind::kWsd, LrScheduleKind::kConstant}) {
    RunConfig config = small_config();
    config.lr_schedule.kind = kind;
    config.lr_schedule.warmup_steps = 9;
    const Outcome first = resolve(config, {.world = 2});
    const RunConfig written = with_defaults_written(config, first.run);
    EXPECT_EQ(written.batch.global, 4);
    EXPECT_EQ(written.data.seed, 1234);
    const LoadedConfig again = parse_run_config(resolved_json(written));
    ASSERT_TRUE(again.problems.empty()) << format_problems(again.problems);
    const Outcome second = resolve(again.config, {.world = 2});
    EXPECT_TRUE(second.problems.empty()) << format_problems(second.problems);
    EXPECT_EQ(second.run.batch, first.run.batch);
    EXPECT_EQ(resolved_json(with_defaults_written(again.config, second.run)),
              resolved_json(written));
    // On other ranks the global batch stays.
    EXPECT_EQ(resolve(again.config, {.world = 1}).run.batch, (ResolvedBatch{4, 2, 2, 1}));
  }
}

TEST(Resolve, a_default_precision_is_that_of_the_device_in_every_figure) {
  RunConfig open = small_config();
  open.model.layers.resize(2, open.model.layer(0));
  open.parallel.pipeline = 2;
  open.parallel.pipeline_schedule = "zb-h1";
  RunConfig bf16 = open, fp32 = open;
  bf16.precision.compute = ComputePrecision::kBf16;
  fp32.precision.compute = ComputePrecision::kFp32;
  const auto run_of = [](const RunConfig& config, DeviceKind device) {
    Outcome outcome = resolve(config, {.world = 2, .device = device});
    EXPECT_TRUE(outcome.problems.empty()) << format_problems(outcome.problems);
    return outcome.run;
  };
  const ResolvedRun on_gpu = run_of(open, DeviceKind::kCuda),
                    on_cpu = run_of(open, DeviceKind::kCpu);
  EXPECT_EQ(on_gpu.compute, DType::kBF16);
  EXPECT_EQ(on_gpu.sums, ReductionOrder::kLibrary);
  EXPECT_EQ(on_gpu.pipeline.w_memory, run_of(bf16, DeviceKind::kCuda).pipeline.w_memory);
  EXPECT_NE(on_gpu.pipeline.w_memory, run_of(fp32, DeviceKind::kCuda).pipeline.w_memory);
  EXPECT_EQ(on_cpu.compute, DType::kF32);
  EXPECT_EQ(on_cpu.sums, ReductionOrder::kRank);
  EXPECT_EQ(on_cpu.pipeline.w_memory, run_of(fp32, DeviceKind::kCpu).pipeline.w_memory);
}

TEST(Resolve, what_a_library_of_attention_does_not_serve_is_refused_by_name) {
  RunConfig good = small_config();
  good.model_backend.attention = AttentionKind::kCudnn;
  EXPECT_TRUE(resolve(good, {}).problems.empty());
  const auto refused = [&](const auto& change, const std::string& why, std::int64_t world = 1) {
    RunConfig config = good;
    change(config);
    ResolveInput input;
    input.world = world;
    const Problem problem = only_problem(resolve(config, input));
    EXPECT_EQ(problem.path, "model_backend.attention");
    EXPECT_EQ(problem.nearest, "\"own\"");
    EXPECT_NE(problem.message.find(why), std::string::npos) << problem.message;
  };
  const auto by_default = [&](const auto& change, DeviceKind device) {
    RunConfig config = good;
    config.model_backend.attention = AttentionKind::kAuto;
    change(config);
    return std::string(attention_backend(config, device).name);
  };
  const auto nothing = [](RunConfig&) {};
  EXPECT_EQ(by_default(nothing, DeviceKind::kCuda), "auto");
  EXPECT_EQ(by_default(nothing, DeviceKind::kCpu), "own");
  EXPECT_EQ(by_default([](RunConfig& c) { c.data.document_mask = true; }, DeviceKind::kCuda),
            "own");
  refused([](RunConfig& c) { c.precision.compute = ComputePrecision::kFp32; }, "not in fp32");
  refused([](RunConfig& c) { c.data.document_mask = true; }, "knows no documents");
  refused([](RunConfig& c) { c.parallel.context = 2; }, "whole sequences", 2);
  refused([](RunConfig& c) { c.model.layers.back().attention.window = c.data.sequence_length - 1; },
          "knows no windows");
  refused([](RunConfig& c) { c.data.sequence_length = 1; }, "one token");
  refused(
      [](RunConfig& c) {
        for (LayerConfig& layer : c.model.layers) layer.attention.head_dim = 12;
      },
      "does not serve heads of 12");
}

}  // namespace
}  // namespace trireme
