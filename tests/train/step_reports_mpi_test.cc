#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>

#include "support/mpi_test.h"
#include "train/step_reports.h"

namespace trireme {
namespace {

RankReport report_of(int rank, double scale) {
  ExactSum squares;
  squares.add(scale * (rank + 1) * (rank + 1));
  RankReport report;
  report.squares = squares.words();
  report.loss_sum = scale / (rank + 3);
  report.target_count = 10 + rank;
  report.stop_reason = rank == 1 ? 2 : 0;
  report.memory_bytes = 100 - rank;
  report.span_ns = 50 + rank;
  report.busy_ns = 40;
  report.microjoules = rank == 0 ? 0 : 1'500'000;
  report.meters = rank == 0 ? 0 : 1;
  report.writers = WriterStates(rank == 0 ? WriterState::kDone : WriterState::kBusy);
  return report;
}

void expect_facts_of_all(StepReports& reports, double scale) {
  Communicator& world = test_world();
  reports.start(report_of(world.rank(), scale));
  const StepFacts facts = reports.finish();
  double squares = 0, losses = 0;
  std::int64_t targets = 0;
  for (int rank = 0; rank < world.size(); ++rank) {
    squares += scale * (rank + 1) * (rank + 1);
    losses += scale / (rank + 3);
    targets += 10 + rank;
  }
  EXPECT_EQ(facts.norm, std::sqrt(squares));
  EXPECT_NEAR(facts.loss_sum, losses, 1e-15 * losses) << "grouped by neighbours";
  EXPECT_EQ(facts.target_count, targets);
  EXPECT_EQ(facts.stop_reason, world.size() > 1 ? 2 : 0);
  EXPECT_FALSE(facts.save_is_late);
  EXPECT_EQ(facts.memory_bytes, 100);
  EXPECT_EQ(facts.longest_span_ns, 50 + world.size() - 1);
  EXPECT_DOUBLE_EQ(facts.busy_ns, 40);
  EXPECT_EQ(facts.joules.has_value(), world.size() > 1);
  EXPECT_DOUBLE_EQ(facts.joules.value_or(0), 1.5 * (world.size() - 1));
  EXPECT_EQ(reports.all().writers.first, WriterState::kDone);
  EXPECT_EQ(reports.all().writers.any_busy, world.size() > 1 ? 1 : 0);
  EXPECT_EQ(reports.all().writers.any_failed, 0);
}

TEST(StepReports, everybody_receives_the_same) {
  StepReports reports(test_world());
  for (const double scale : {1.0, 0.25, 1e300}) expect_facts_of_all(reports, scale);
  RankReport last = report_of(test_world().rank(), 1);
  ExactSum squares;
  squares.add(test_world().rank() == test_world().size() - 1 ? std::nan("") : 1.0);
  last.squares = squares.words();
  last.save_is_late = test_world().rank() == 0 ? 1 : 0;
  reports.start(last);
  const StepFacts facts = reports.finish();
  EXPECT_FALSE(std::isfinite(facts.norm));
  EXPECT_TRUE(facts.save_is_late);
}

TEST(StepReports, tokens_of_experts_are_those_of_all_ranks) {
  Communicator& world = test_world();
  StepReports reports(world);
  Stage::ExpertTotals mine;
  mine.losses = {{0, 0}, {0.5, 0.25}};
  mine.load = {{0, 0, 0}, {world.rank(), 0, 2}};
  reports.start(report_of(world.rank(), 1), mine);
  const StepFacts facts = reports.finish();
  const std::int64_t ranks = world.size(), first = ranks * (ranks - 1) / 2;
  ASSERT_TRUE(facts.experts);
  EXPECT_EQ(facts.experts->tokens, (ExpertLoad{{0, 0, 0}, {first, 0, 2 * ranks}}));
  EXPECT_EQ(facts.experts->aux_loss, 0.5 * static_cast<double>(ranks));
  EXPECT_EQ(facts.experts->load[0], 0);
  EXPECT_DOUBLE_EQ(facts.experts->load[1], 3.0 * static_cast<double>(std::max(first, 2 * ranks)) /
                                               static_cast<double>(first + 2 * ranks));
}

/// The others send only when rank 0 has gone on.
TEST(StepReports, beside_the_computation_nobody_waits_where_he_sends) {
  Communicator& world = test_world();
  StepReports reports(world);
  std::int64_t gone_on = world.rank() == 0 ? 1 : 0;
  if (world.rank() == 0) reports.start(report_of(0, 1));
  world.broadcast(std::as_writable_bytes(std::span(&gone_on, 1)), 0);
  if (world.rank() != 0) reports.start(report_of(world.rank(), 1));
  EXPECT_EQ(gone_on, 1);
  EXPECT_GT(reports.finish().norm, 0);
}

}  // namespace
}  // namespace trireme
