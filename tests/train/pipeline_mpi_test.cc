// Every schedule on every pipeline extent gives the bits of one stage on an equal mesh otherwise.

#include <gtest/gtest.h>

#include <memory>

#include "base/file.h"
#include "pipeline/executor.h"
#include "pipeline/schedules/schedules.h"
#include "support/mpi_test.h"
#include "support/recompute_schedule.h"
#include "support/temporary_directory.h"
#include "train/mesh_run.h"

namespace trireme {
namespace {

constexpr int kSteps = 3;

/// Micro-batches that every kind of schedule takes on so many stages.
int micro_batches(int pipeline) { return 2 * pipeline; }

MeshCell cell_of(int ranks, int pipeline, const std::string& schedule, MeshModel model) {
  MeshCell cell;
  cell.model = model;
  cell.pipeline = pipeline;
  cell.schedule = schedule;
  cell.data = ranks / pipeline;
  cell.accumulation = micro_batches(pipeline);
  cell.layers = 2 * pipeline + 1;  // stages differ
  return cell;
}

/// The same cell with one stage, run by as many ranks as that takes.
std::string bits_of_one_stage(const MeshCell& cell) {
  MeshCell one = cell;
  one.pipeline = 1;
  one.schedule = "1f1b";
  one.recompute = Recompute::kNone;
  Communicator& world = test_launch().job();
  const std::unique_ptr<Communicator> part = world.split(world.rank() / one.ranks());
  return bits_of(run_mesh(test_launch(), *part, one, cell.global_batch(), kSteps));
}

void expect_bits_of_one_stage(const MeshCell& cell) {
  const MeshResult found =
      run_mesh(test_launch(), test_launch().job(), cell, cell.global_batch(), kSteps);
  EXPECT_EQ(found.initial.fault + found.gradients.fault + found.final.fault, "") << cell.text();
  EXPECT_EQ(bits_of(found), bits_of_one_stage(cell)) << cell.text();
}

TEST(Pipelines, every_schedule_gives_the_bits_of_one_stage) {
  const int ranks = test_launch().job().size();
  int turn = 0;
  for (const int pipeline : {2, 3, 4}) {
    if (ranks % pipeline != 0) continue;
    for (const std::string& schedule : schedule_names()) {
      MeshCell cell = cell_of(ranks, pipeline, schedule, kMeshModels[turn++ % 5]);
      expect_bits_of_one_stage(cell);
    }
  }
}

TEST(Pipelines, every_stage_of_zero_goes_with_fused_and_with_postponed_weight_gradients) {
  const int ranks = test_launch().job().size();
  if (ranks != 4) GTEST_SKIP();
  for (const char* schedule : {"1f1b", "interleaved", "zb-h2", "zb-v"}) {
    for (const int zero_stage : {1, 2, 3}) {
      MeshCell cell = cell_of(ranks, 2, schedule, MeshModel::kGemma3);
      cell.zero_stage = zero_stage;
      expect_bits_of_one_stage(cell);
    }
  }
}

/// A tied weight whose ends are not one chunk is summed over ranks in two parts where gradients
/// are reduced after each micro-batch: equal to rounding, not in bits.
TEST(Pipelines, a_tied_model_with_reduced_gradients_agrees_to_rounding) {
  const int ranks = test_launch().job().size();
  if (ranks != 4) GTEST_SKIP();
  for (const char* schedule : {"1f1b", "zb-v"}) {
    MeshCell cell = cell_of(ranks, 2, schedule, MeshModel::kGpt2);
    cell.zero_stage = 3;
    MeshCell one = cell.alone();
    const std::unique_ptr<Communicator> self = make_self_communicator();
    const MeshResult expected = run_mesh(test_launch(), *self, one, cell.global_batch(), kSteps);
    const MeshDistance distance = distance_of(
        run_mesh(test_launch(), test_launch().job(), cell, cell.global_batch(), kSteps), expected);
    EXPECT_LE(distance.losses, 2e-6) << cell.text();
    EXPECT_LE(distance.gradients, 5e-6) << cell.text() << ": " << distance.worst_gradient;
    EXPECT_LE(distance.moments, 5e-6) << cell.text() << ": " << distance.worst_moment;
  }
}

TEST(Pipelines, stages_are_sharded_by_tensor_and_context_too) {
  const int ranks = test_launch().job().size();
  if (ranks != 4) GTEST_SKIP();
  for (const char* schedule : {"1f1b", "zb-v"}) {
    MeshCell cell = cell_of(ranks, 2, schedule, MeshModel::kLlama);
    cell.data = 1;
    cell.tensor = 2;
    cell.sequence_parallel = true;
    expect_bits_of_one_stage(cell);
    cell.tensor = 1;
    cell.sequence_parallel = false;
    cell.context = 2;
    expect_bits_of_one_stage(cell);
  }
  MeshModel model = MeshModel::kOlmo3;
  for (const char* schedule : {"interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
    MeshCell again = cell_of(ranks, 2, schedule, model);
    again.recompute = Recompute::kFull;
    expect_bits_of_one_stage(again);
    model = MeshModel::kGemma3;
  }
  MeshCell cut = cell_of(ranks, 2, "zb-h1", MeshModel::kGemma3);
  cut.data = 1;
  cut.tensor = 2;
  cut.sequence_parallel = true;
  cut.recompute = Recompute::kFull;
  expect_bits_of_one_stage(cut);
}

/// A file of a schedule with B and W apart, where it has them, and with R here and there.
std::string schedule_with_recompute(const TemporaryDirectory& directory, const std::string& kind,
                                    int pipeline, std::uint64_t seed) {
  ScheduleRequest request;
  request.kind = *schedule_kind(kind);
  request.stages = pipeline;
  request.micro_batches = micro_batches(pipeline);
  std::mt19937_64 random(seed);
  const Schedule schedule = with_recompute(make_schedule(request), random);
  return directory.write(kind + ".json", schedule_json(schedule).dump()).string();
}

TEST(Pipelines, r_as_an_action_gives_the_bits_of_keeping_everything) {
  const int ranks = test_launch().job().size();
  const TemporaryDirectory directory;
  std::uint64_t seed = 0;
  for (const int pipeline : {2, 3, 4}) {
    if (ranks % pipeline != 0) continue;
    for (const char* kind : {"1f1b", "interleaved", "zb-h1", "zb-v", "dualpipe-v"}) {
      const std::string schedule = schedule_with_recompute(directory, kind, pipeline, ++seed);
      MeshCell cell = cell_of(ranks, pipeline, schedule, kMeshModels[seed % 5]);
      cell.recompute = Recompute::kFull;
      expect_bits_of_one_stage(cell);
    }
    const std::string schedule = schedule_with_recompute(directory, "zb-h1", pipeline, ++seed);
    MeshCell cell = cell_of(ranks, pipeline, schedule, MeshModel::kGemma3);
    cell.recompute = Recompute::kSelective;
    expect_bits_of_one_stage(cell);
  }
}

TEST(Pipelines, r_goes_with_zero_and_with_stages_that_are_sharded) {
  const int ranks = test_launch().job().size();
  if (ranks != 4) GTEST_SKIP();
  const TemporaryDirectory directory;
  std::uint64_t seed = 100;
  for (const char* kind : {"zb-h1", "zb-v"}) {
    const std::string schedule = schedule_with_recompute(directory, kind, 2, ++seed);
    MeshCell cell = cell_of(ranks, 2, schedule, MeshModel::kGemma3);
    cell.recompute = Recompute::kFull;
    for (const int zero_stage : {2, 3}) {
      cell.zero_stage = zero_stage;
      expect_bits_of_one_stage(cell);
    }
    cell.recompute = Recompute::kSelective;
    expect_bits_of_one_stage(cell);
    MeshCell cut = cell_of(ranks, 2, schedule, MeshModel::kLlama);
    cut.recompute = Recompute::kFull;
    cut.data = 1;
    cut.tensor = 2;
    cut.sequence_parallel = true;
    expect_bits_of_one_stage(cut);
    cut.tensor = 1;
    cut.sequence_parallel = false;
    cut.context = 2;
    expect_bits_of_one_stage(cut);
  }
}

}  // namespace
}  // namespace trireme
