#include "plan/pipeline.h"

#include <gtest/gtest.h>

#include <tuple>

#include "base/file.h"
#include "support/temporary_directory.h"

namespace trireme {
namespace {

RunConfig::Parallel parallel_of(std::int64_t pipeline, const char* schedule) {
  RunConfig::Parallel parallel;
  parallel.pipeline = pipeline;
  parallel.pipeline_schedule = schedule;
  return parallel;
}

/// A head of about half a layer.
ModelConfig small_model(std::int64_t layers) {
  ModelConfig model;
  LayerConfig layer;
  layer.attention.heads = layer.attention.kv_heads = 2;
  layer.attention.head_dim = 8;
  layer.mlp.ffn = 40;
  model.layers.assign(static_cast<std::size_t>(layers), layer);
  model.hidden = 16;
  model.vocab_size = 100;
  return model;
}

MeshShape mesh_of(const RunConfig::Parallel& parallel) {
  return MeshShape({static_cast<int>(parallel.pipeline), 1, 1, 1});
}

Pipeline pipeline_of(const RunConfig::Parallel& parallel, std::int64_t layers,
                     std::int64_t micro_batches) {
  RunConfig config;
  config.parallel = parallel;
  config.model = small_model(layers);
  config.data.sequence_length = 16;
  return make_pipeline(config, mesh_of(parallel), {{micro_batches, 1, micro_batches, 1}},
                       DType::kF32);
}

std::string fault_of(const RunConfig::Parallel& parallel, std::int64_t layers,
                     std::int64_t micro_batches) {
  try {
    (void)pipeline_of(parallel, layers, micro_batches);
    return "";
  } catch (const ConfigError& error) {
    return error.what();
  }
}

TEST(Pipeline, one_rank_is_a_plan_of_one_stage_with_one_micro_batch_in_flight) {
  const Pipeline pipeline = pipeline_of({}, 3, 4);
  const std::vector<ChunkShape> chunks = pipeline.chunks_of(0);
  ASSERT_EQ(chunks.size(), 1U);
  EXPECT_EQ(chunks[0].range.layers, 3);
  EXPECT_TRUE(chunks[0].range.embedding && chunks[0].range.head);
  EXPECT_EQ(chunks[0].ends, (std::vector<std::int32_t>{0, 0, 0, 0}));
  EXPECT_FALSE(pipeline.splits(0));
}

TEST(Pipeline, layers_are_dealt_out_in_order_and_the_ends_have_embedding_and_head) {
  const Pipeline pipeline = pipeline_of(parallel_of(2, "interleaved"), 6, 4);
  ASSERT_EQ(pipeline.stages.size(), 4U);
  std::int64_t next = 0;
  for (std::size_t s = 0; s < 4; ++s) {
    EXPECT_EQ(pipeline.stages[s].first_layer, next);
    next += pipeline.stages[s].layers;
    EXPECT_EQ(pipeline.stages[s].embedding, s == 0);
    EXPECT_EQ(pipeline.stages[s].head, s == 3);
  }
  EXPECT_EQ(next, 6);
  EXPECT_EQ(pipeline.chunks_of(1).size(), 2U);
}

TEST(Pipeline, the_first_rank_of_1f1b_has_as_many_in_flight_as_there_are_stages) {
  const Pipeline pipeline = pipeline_of(parallel_of(4, "1f1b"), 4, 8);
  for (int rank = 0; rank < 4; ++rank) {
    const ChunkShape chunk = pipeline.chunks_of(rank)[0];
    EXPECT_EQ(*std::max_element(chunk.ends.begin(), chunk.ends.end()), 3 - rank);
    EXPECT_EQ(chunk.gradients, std::vector<std::int32_t>(8, -1));
  }
}

TEST(Pipeline, layers_may_be_given_for_each_stage) {
  RunConfig::Parallel parallel = parallel_of(2, "1f1b");
  parallel.pipeline_layers = {5, 2};
  const Pipeline pipeline = pipeline_of(parallel, 7, 2);
  EXPECT_EQ(pipeline.stages[1].first_layer, 5);
  EXPECT_EQ(pipeline.stages[1].layers, 2);
  parallel.pipeline_layers = {5, 3};
  EXPECT_NE(fault_of(parallel, 7, 2).find("together the model's 7 layers"), std::string::npos);
  parallel.pipeline_layers = {7, 0};
  EXPECT_NE(fault_of(parallel, 7, 2).find("each at least 1"), std::string::npos);
}

std::vector<std::int64_t> layers_of(const Pipeline& pipeline) {
  std::vector<std::int64_t> layers;
  for (const ChunkRange& stage : pipeline.stages) layers.push_back(stage.layers);
  return layers;
}

TEST(Pipeline, a_large_vocabulary_leaves_fewer_layers_to_the_rank_of_the_head) {
  RunConfig config;
  config.parallel = parallel_of(4, "1f1b");
  config.model = small_model(16);
  config.data.sequence_length = 16;
  EXPECT_EQ(layers_of(make_pipeline(config, mesh_of(config.parallel), {{8, 1, 8, 1}}, DType::kF32)),
            (std::vector<std::int64_t>{4, 4, 4, 4}));
  config.model.vocab_size = 1000;
  EXPECT_EQ(layers_of(make_pipeline(config, mesh_of(config.parallel), {{8, 1, 8, 1}}, DType::kF32)),
            (std::vector<std::int64_t>{5, 5, 5, 1}));
  config.parallel = parallel_of(2, "zb-v");
  const Pipeline pipeline =
      make_pipeline(config, mesh_of(config.parallel), {{8, 1, 8, 1}}, DType::kF32);
  EXPECT_EQ(layers_of(pipeline), (std::vector<std::int64_t>{5, 5, 5, 1}));
  EXPECT_EQ(pipeline.placement.back(), 0);
}

TEST(Pipeline, stages_take_the_times_of_what_they_compute_unless_the_config_says_others) {
  RunConfig config;
  config.parallel = parallel_of(2, "zb-h1");
  config.model = small_model(6);
  config.model.vocab_size = 1000;
  config.data.sequence_length = 16;
  const Pipeline pipeline =
      make_pipeline(config, mesh_of(config.parallel), {{4, 1, 4, 1}}, DType::kF32);
  const ActionTimes& times = pipeline.times;
  ASSERT_EQ(times.stages.size(), 2U);
  EXPECT_NEAR(times.all(), 3, 1e-9) << "of a stage in the mean";
  const auto& [first, last] = std::tie(times.stages[0], times.stages[1]);
  EXPECT_NEAR(first.backward_weight / last.backward_weight,
              static_cast<double>(pipeline.stages[0].layers) /
                  static_cast<double>(pipeline.stages[1].layers),
              1e-9);
  EXPECT_GT(last.forward, first.forward) << "the head makes its gradients in F";
  EXPECT_GT(first.backward_input, first.forward) << "attention makes its scores anew";
  config.parallel.pipeline_times = {1, 2, 3, 0.5};
  const ActionTimes given =
      make_pipeline(config, mesh_of(config.parallel), {{4, 1, 4, 1}}, DType::kF32).times;
  EXPECT_TRUE(given.stages.empty());
  EXPECT_EQ(given.backward_weight, 3);
  EXPECT_EQ(given.transfer, 0.5);
}

TEST(Pipeline, more_stages_than_layers_are_refused_with_the_numbers) {
  EXPECT_NE(fault_of(parallel_of(4, "1f1b"), 3, 8).find("4 virtual stages for a model of 3 layers"),
            std::string::npos);
  RunConfig::Parallel fixed = parallel_of(2, "zb-v");
  EXPECT_NE(fault_of(fixed, 3, 8).find("4 virtual stages"), std::string::npos);
  fixed.virtual_stages = 1;  // which it has not
  EXPECT_NE(fault_of(fixed, 3, 8).find("4 virtual stages"), std::string::npos);
}

TEST(Pipeline, a_schedule_file_is_run_and_one_of_other_sizes_is_refused) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "schedule.json";
  write_file_atomically(path, schedule_json(make_1f1b(2, 3)).dump());
  RunConfig::Parallel parallel = parallel_of(2, path.c_str());
  EXPECT_EQ(pipeline_of(parallel, 2, 3).schedule().ranks, make_1f1b(2, 3).ranks);
  EXPECT_NE(fault_of(parallel, 2, 4).find("a schedule of 2 ranks and 3 micro-batches"),
            std::string::npos);
}

/// Bytes of a rank's activations in slots and between B and W.
double activations_of(const RunConfig& config, const Pipeline& pipeline, int rank) {
  StageShape shape;
  shape.tokens = config.data.sequence_length;
  shape.purpose = pipeline.splits(rank) ? StagePurpose::kTrainingSplit : StagePurpose::kTraining;
  shape.chunks = pipeline.chunks_of(rank);
  const auto all = static_cast<double>(Stage::buffer_bytes(config.model, shape, DType::kF32));
  const bool split = shape.purpose == StagePurpose::kTrainingSplit;
  for (ChunkShape& chunk : shape.chunks) chunk = lone_chunk(chunk.range, 1, split ? 1 : 0);
  return all - static_cast<double>(Stage::buffer_bytes(config.model, shape, DType::kF32));
}

TEST(Pipeline, a_memory_limit_bounds_what_stages_allocate) {
  RunConfig config;
  config.parallel = parallel_of(4, "zb-auto");
  config.model = small_model(8);
  config.model.vocab_size = 10;  // equal stages
  config.data.sequence_length = 64;
  int filled = 0;
  for (const double limit : {1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.5, 8.0}) {
    config.parallel.pipeline_memory_limit = limit;
    const Pipeline pipeline =
        make_pipeline(config, mesh_of(config.parallel), {{12, 1, 12, 1}}, DType::kF32);
    EXPECT_GT(pipeline.w_memory, 1.3);
    EXPECT_LT(pipeline.w_memory, 1.5);
    // Of a stage in the middle: one activation more.
    StageShape one;
    one.tokens = config.data.sequence_length;
    one.purpose = StagePurpose::kTrainingSplit;
    one.chunks = {lone_chunk(pipeline.stages[1], 2)};
    const auto two = static_cast<double>(Stage::buffer_bytes(config.model, one, DType::kF32));
    one.chunks = {lone_chunk(pipeline.stages[1], 1)};
    const double activation =
        two - static_cast<double>(Stage::buffer_bytes(config.model, one, DType::kF32));
    double most = 0;
    for (int rank = 1; rank < 3; ++rank) {
      // What the first micro-batch takes, and what it leaves for W.
      const double first = pipeline.splits(rank) ? pipeline.w_memory : 1;
      most = std::max(most, first + activations_of(config, pipeline, rank) / activation);
    }
    EXPECT_LE(most, limit * (1 + 1e-9));
    filled += most > limit - 1;
  }
  EXPECT_GE(filled, 6) << "the limit is used";
}

TEST(Pipeline, with_full_recomputation_what_waits_for_w_is_more_than_an_activation) {
  RunConfig config;
  config.parallel = parallel_of(2, "zb-auto");
  config.parallel.recompute = Recompute::kFull;
  config.model = small_model(8);
  config.data.sequence_length = 64;
  const Pipeline pipeline =
      make_pipeline(config, mesh_of(config.parallel), {{4, 1, 4, 1}}, DType::kF32);
  EXPECT_GT(pipeline.w_memory, 5);
  EXPECT_FALSE(pipeline.splits(0) || pipeline.splits(1)) << "1F1B alone takes no more than 1F1B";
  config.parallel.pipeline_schedule = "zb-v";
  const auto zb_v = [&] {
    return make_pipeline(config, mesh_of(config.parallel), {{4, 1, 4, 1}}, DType::kF32);
  };
  EXPECT_FALSE(zb_v().splits(0));
  EXPECT_LT(simulate(zb_v().schedule(), zb_v().times).bubble_rate,
            simulate(pipeline.schedule(), pipeline.times).bubble_rate)
      << "a V of 1F1B";
  config.parallel.pipeline_memory_limit = 12;
  EXPECT_TRUE(zb_v().splits(0));
}

/// Bytes of the buffers of a rank's stages.
double bytes_of(const RunConfig& config, const Pipeline& pipeline, int rank) {
  StageShape shape;
  shape.tokens = config.data.sequence_length;
  shape.purpose = pipeline.splits(rank) ? StagePurpose::kTrainingSplit : StagePurpose::kTraining;
  shape.recompute = config.parallel.recompute;
  shape.chunks = pipeline.chunks_of(rank);
  return static_cast<double>(Stage::buffer_bytes(config.model, shape, DType::kF32));
}

/// Of 24 micro-batches under the config's schedule.
Pipeline pipeline_of(const RunConfig& config) {
  return make_pipeline(config, mesh_of(config.parallel), {{24, 1, 24, 1}}, DType::kF32);
}

/// W keeps more than an activation, and no rank takes more than 1F1B's first all the same.
void expect_memory_of_1f1b(const RunConfig& config, const Pipeline& one, const Pipeline& pipeline) {
  EXPECT_GT(pipeline.w_memory, 1.3);
  for (int rank = 0; rank < config.parallel.pipeline; ++rank) {
    EXPECT_LE(bytes_of(config, pipeline, rank), 1.05 * bytes_of(config, one, 0))
        << config.parallel.pipeline << " ranks, rank " << rank;
  }
}

TEST(Pipeline, zb_h1_takes_no_more_than_the_first_rank_of_1f1b) {
  RunConfig config;
  config.model = small_model(12);
  config.data.sequence_length = 64;
  for (const int ranks : {2, 3, 4, 6}) {
    for (const Recompute recompute : {Recompute::kNone, Recompute::kFull}) {
      config.parallel = parallel_of(ranks, "1f1b");
      config.parallel.recompute = recompute;
      const Pipeline one = pipeline_of(config);
      config.parallel.pipeline_schedule = "zb-h1";
      const Pipeline pipeline = pipeline_of(config);
      expect_memory_of_1f1b(config, one, pipeline);
      EXPECT_EQ(bytes_of(config, pipeline, 0), bytes_of(config, one, 0));
      EXPECT_EQ(pipeline.splits(ranks - 1), recompute == Recompute::kNone);
    }
  }
}

// Its two stages are full at different times, and take turns with the same memory.
TEST(Pipeline, zb_v_takes_no_more_than_the_first_rank_of_1f1b) {
  RunConfig config;
  config.model = small_model(24);
  config.model.vocab_size = 10;  // equal stages
  config.data.sequence_length = 64;
  for (const int ranks : {2, 3, 4, 6}) {
    config.parallel = parallel_of(ranks, "1f1b");
    const Pipeline one = pipeline_of(config);
    config.parallel.pipeline_schedule = "zb-v";
    const Pipeline pipeline = pipeline_of(config);
    expect_memory_of_1f1b(config, one, pipeline);
    EXPECT_LT(simulate(pipeline.schedule(), pipeline.times).bubble_rate,
              0.75 * simulate(one.schedule(), one.times).bubble_rate)
        << ranks << " ranks";
  }
}

TEST(Pipeline, what_r_makes_is_a_set_of_activations_for_each_that_waits) {
  const TemporaryDirectory directory;
  const std::filesystem::path path = directory.path() / "schedule.json";
  RunConfig config;
  config.parallel = parallel_of(2, path.c_str());
  config.parallel.recompute = Recompute::kFull;
  config.model = small_model(6);
  config.data.sequence_length = 64;
  const auto resolved = [&](const Schedule& schedule) {
    write_file_atomically(path, schedule_json(schedule).dump());
    return make_pipeline(config, mesh_of(config.parallel), {{4, 1, 4, 1}}, DType::kF32);
  };
  Schedule schedule = make_1f1b(2, 4);
  const Pipeline none = resolved(schedule);
  // Rank 0: F0 F1 R0 R1 BW0 F2 BW1 F3 BW2 BW3.
  schedule.ranks[0].insert(schedule.ranks[0].begin() + 2,
                           {{ActionKind::kRecompute, 0, 0}, {ActionKind::kRecompute, 0, 1}});
  const Pipeline two = resolved(schedule);
  EXPECT_EQ(bytes_of(config, two, 1), bytes_of(config, none, 1));
  const std::int64_t hidden = config.model.hidden;
  const LayerConfig& of = config.model.layer(0);
  // All but s1: qkv, attention's output, s2 and up; log-sum-exps and the norms' statistics.
  const std::int64_t layer =
      4 * 64 * (3 * hidden + 2 * hidden + 2 * of.mlp.ffn + of.attention.heads + 2);
  const double made = bytes_of(config, two, 0) - bytes_of(config, none, 0);
  EXPECT_EQ(made, static_cast<double>(2 * none.stages[0].layers * layer));
  // The simulator counts the same, in activations.
  StageShape shape;
  shape.tokens = 64;
  shape.recompute = Recompute::kFull;
  shape.chunks = {lone_chunk(none.stages[0], 2)};
  const auto more = static_cast<double>(Stage::buffer_bytes(config.model, shape, DType::kF32));
  shape.chunks = {lone_chunk(none.stages[0], 1)};
  const double activation =
      more - static_cast<double>(Stage::buffer_bytes(config.model, shape, DType::kF32));
  EXPECT_DOUBLE_EQ(two.r_memory, made / 2 / activation);
  EXPECT_DOUBLE_EQ(simulate(two.schedule(), two.times, two.w_memory, two.r_memory).peak[0],
                   2 + 2 * two.r_memory);
}

TEST(Pipeline, r_takes_over_what_full_recomputation_adds_to_b) {
  RunConfig config;
  config.parallel = parallel_of(2, "1f1b");
  config.parallel.recompute = Recompute::kFull;
  config.model = small_model(6);
  config.data.sequence_length = 16;
  const auto times = [&] {
    return make_pipeline(config, mesh_of(config.parallel), {{4, 1, 4, 1}}, DType::kF32).times;
  };
  const ActionTimes full = times();
  EXPECT_DOUBLE_EQ(full.of(ActionKind::kRecompute, 0), full.of(ActionKind::kForward, 0));
  EXPECT_LT(full.of(ActionKind::kRecompute, 1), full.of(ActionKind::kForward, 1)) << "no head";
  config.parallel.recompute = Recompute::kNone;
  const ActionTimes none = times();
  const double unit = full.of(ActionKind::kForward, 0) / none.of(ActionKind::kForward, 0);
  EXPECT_NEAR(full.of(ActionKind::kBackwardInput, 1) - full.saved_by_recompute(1),
              unit * none.of(ActionKind::kBackwardInput, 1), 1e-9);
  config.parallel.pipeline_times = {1, 2, 3, 0.5};
  config.parallel.recompute = Recompute::kFull;
  EXPECT_EQ(times().saved_by_recompute(1), 1);
}

TEST(Pipeline, a_memory_limit_that_no_plan_keeps_is_refused_with_the_least) {
  RunConfig::Parallel parallel = parallel_of(2, "zb-h1");
  parallel.pipeline_memory_limit = 1;
  EXPECT_NE(fault_of(parallel, 2, 4)
                .find("a memory limit of 1 full-stage activations is too small. Legal: 2 or more"),
            std::string::npos);
  for (const char* any : {"zb-auto", "zb-v"}) {
    parallel.pipeline_schedule = any;
    EXPECT_EQ(fault_of(parallel, 4, 4), "");
  }
}

}  // namespace
}  // namespace trireme
