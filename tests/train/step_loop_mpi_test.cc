// The steps of training as whoever runs them sees them.

#include <gtest/gtest.h>

#include "optim/lr_schedule.h"
#include "support/gradient_norm.h"
#include "support/mpi_test.h"
#include "support/small_config.h"
#include "train/run_data.h"
#include "train/step_loop.h"

namespace trireme {
namespace {

RunConfig config_of_steps() {
  RunConfig config = small_config(1);
  config.run.threads_per_rank = 1;
  config.data.sequence_length = 8;
  config.batch.accumulation = 2;
  config.lr_schedule.warmup_steps = 3;
  return config;
}

/// A rank's resources for steps on the ranks of `replica`.
struct RankRun {
  explicit RankRun(Communicator& replica, const RunConfig& config = config_of_steps())
      : prepared(prepared_on(replica.size(), config)),
        runtime(test_launch(), replica, prepared.config, prepared.run, RuntimeOptions()),
        loader(source_of(config), config.data, batch_shape(prepared, runtime), -1,
               config.model.vocab_size) {
    runtime.store.initialise(runtime.context, 1);
    runtime.weights_changed(Runtime::Copies::kStale);
  }

  static PreparedRun prepared_on(std::int64_t ranks, const RunConfig& config) {
    std::vector<Problem> problems;
    std::vector<std::string> notes;
    ResolveInput input;
    input.world = ranks;
    PreparedRun prepared;
    prepared.run = resolve_run(config, input, problems, notes);
    expect(problems.empty(), "{}", format_problems(problems));
    prepared.config = config;
    return prepared;
  }
  static std::shared_ptr<const SampleSource> source_of(const RunConfig& config) {
    SourceRequest request;
    request.vocab_size = config.model.vocab_size;
    return make_training_source(config, request);
  }

  const PreparedRun prepared;
  Runtime runtime;
  Loader loader;
};

StepLoopInputs inputs_of(std::int64_t steps, std::int64_t stop_reason = 0) {
  StepLoopInputs inputs;
  inputs.steps = steps;
  inputs.report = [=](RankReport& mine) { mine.stop_reason = stop_reason; };
  inputs.stands_still_behind = [](std::int64_t) { return false; };
  return inputs;
}

TEST(StepLoop, has_the_bits_of_steps_made_by_hand) {
  constexpr std::int64_t kSteps = 4;
  std::vector<CommittedStep> found;
  {
    RankRun run(test_world());
    StepLoop loop(run.runtime, run.loader, inputs_of(kSteps));
    for (std::int64_t i = 0; i < kSteps; ++i) found.push_back(loop.next());
  }
  RankRun run(test_world());
  const RunConfig& config = run.prepared.config;
  Step step(run.runtime);
  for (std::int64_t i = 0; i < kSteps; ++i) {
    const StepBatch batch = run.loader.next();
    std::int64_t targets = batch.target_count;
    test_world().sum(std::span(&targets, 1));
    step.forward_backward(batch.micro_batches, targets);
    const double norm =
        gradient_norm(run.runtime.context, run.runtime.store, run.runtime.replica());
    const double lr = learning_rate(config.lr_schedule, config.optimizer.lr, kSteps, i + 1);
    const CommittedStep& committed = found[static_cast<std::size_t>(i)];
    EXPECT_EQ(committed.step, i + 1);
    EXPECT_EQ(committed.lr, lr);
    EXPECT_EQ(committed.facts.norm, norm) << i;
    EXPECT_EQ(committed.loss,
              run.runtime.sum_of_losses(step.loss_sum()) / static_cast<double>(targets))
        << i;
    EXPECT_FALSE(committed.skip);
    step.update(lr, norm);
  }
  EXPECT_NE(found[0].facts.norm, found[3].facts.norm);
}

// One replica makes five steps while the other makes two, and is told to stop by one of its ranks.
TEST(StepLoop, a_replica_decides_without_the_rest_of_the_job) {
  Communicator& job = test_world();
  const int replica = job.rank() % 2;
  const std::unique_ptr<Communicator> ranks = job.split(replica);
  RankRun run(*ranks);
  const std::int64_t steps = replica == 0 ? 2 : 5;
  StepLoop loop(run.runtime, run.loader, inputs_of(steps, job.rank() == 1 ? 7 : 0));
  for (std::int64_t i = 1; i <= steps; ++i) {
    const CommittedStep step = loop.next();
    EXPECT_EQ(step.step, i);
    EXPECT_EQ(step.facts.stop_reason, replica == 1 ? 7 : 0);
    EXPECT_EQ(loop.reports().stop_reason, step.facts.stop_reason);
    EXPECT_TRUE(step.finite());
  }
}

TEST(StepLoop, what_is_done_between_steps_is_in_the_times_of_none) {
  constexpr std::int64_t kLongNs = 1'000'000'000'000;
  RankRun run(test_world());
  StepLoop loop(run.runtime, run.loader, inputs_of(3));
  std::int64_t counted_ns = 0, around_ns = 0;
  for (int i = 0; i < 3; ++i) {
    run.runtime.trace.record({0, kLongNs, -1, Phase::kForward});
    const std::int64_t begin_ns = steady_now_ns();
    const StepTimes times = loop.next().times;
    around_ns += steady_now_ns() - begin_ns;
    counted_ns += times.wall_ns;
    EXPECT_GT(times.seconds_of(Phase::kForward), 0);
    EXPECT_GT(times.seconds_of(Phase::kOptimizer), 0);
    EXPECT_LT(times.seconds_of(Phase::kForward), times.seconds());
  }
  EXPECT_LE(counted_ns, around_ns);
}

std::string parameters_of(const ParamStore& store) {
  std::string bits;
  for (ParamIndex i = 0; i < static_cast<ParamIndex>(store.params().size()); ++i) {
    if (!store.has_value(i)) continue;
    const TensorView value = store.value(i);
    bits.append(reinterpret_cast<const char*>(value.data), value.bytes());
  }
  return bits;
}

/// Steps 1 and 4 by hand: the batches between are read and computed by nobody. The norm of step 4,
/// and the parameters behind it.
std::pair<double, std::string> without_two_steps(const RunConfig& config, std::int64_t steps) {
  RankRun run(test_world(), config);
  Step step(run.runtime);
  double norm = 0;
  for (const std::int64_t k : {1, 2, 3, 4}) {
    const StepBatch batch = run.loader.next();
    if (k == 2 || k == 3) continue;
    std::int64_t targets = batch.target_count;
    test_world().sum(std::span(&targets, 1));
    step.forward_backward(batch.micro_batches, targets);
    norm = gradient_norm(run.runtime.context, run.runtime.store, run.runtime.replica());
    step.update(learning_rate(config.lr_schedule, config.optimizer.lr, steps, k), norm);
  }
  return {norm, parameters_of(run.runtime.store)};
}

TEST(StepLoop, steps_that_are_passed_over_leave_the_state_alone_and_take_their_samples) {
  for (const bool ahead : {false, true}) {
    RunConfig config = config_of_steps();
    config.parallel.speculative_step = ahead;
    config.optimizer.clip_grad_norm = 0;
    const auto [norm, parameters] = without_two_steps(config, 5);
    RankRun run(test_world(), config);
    StepLoopInputs inputs = inputs_of(5);
    inputs.passed_over = {{2, 3}, {5, 9}};
    StepLoop loop(run.runtime, run.loader, inputs);
    EXPECT_FALSE(loop.next().skip);
    const std::string state = parameters_of(run.runtime.store);
    for (const std::int64_t k : {2, 3}) {
      const CommittedStep step = loop.next();
      EXPECT_EQ(step.step, k);
      EXPECT_EQ(step.skip.value().reason, kPassedOver);
      EXPECT_TRUE(std::isnan(step.loss) && std::isnan(step.facts.norm));
      EXPECT_EQ(step.lr, learning_rate(config.lr_schedule, config.optimizer.lr, 5, k));
      EXPECT_EQ(parameters_of(run.runtime.store), state);
    }
    EXPECT_EQ(run.runtime.optimizer->applied_updates(), 1);
    const CommittedStep fourth = loop.next();
    EXPECT_FALSE(fourth.skip);
    EXPECT_EQ(fourth.facts.norm, norm);
    EXPECT_EQ(parameters_of(run.runtime.store), parameters);
    EXPECT_EQ(loop.next().skip.value().reason, kPassedOver);
  }
}

// Its update is not made, or, where it was made ahead, taken back.
TEST(StepLoop, a_spike_is_not_updated) {
  for (const bool ahead : {false, true}) {
    RunConfig config = config_of_steps();
    config.parallel.speculative_step = ahead;
    config.optimizer.clip_grad_norm = 0;
    RankRun run(test_world(), config);
    SpikeWatch watch(SpikeRule{6, 8});
    StepLoopInputs inputs = inputs_of(6);
    inputs.spikes = &watch;
    StepLoop loop(run.runtime, run.loader, inputs);
    EXPECT_FALSE(loop.next().skip);
    EXPECT_FALSE(loop.next().skip);
    EXPECT_EQ(run.runtime.optimizer->applied_updates(), 2);
    const std::string state = parameters_of(run.runtime.store);
    for (const double tiny : {1e-3, 1.1e-3, 1.2e-3}) watch.add(tiny, tiny);
    const CommittedStep spike = loop.next();
    EXPECT_EQ(spike.step, 3);
    EXPECT_TRUE(spike.finite());
    EXPECT_EQ(spike.skip.value().reason, kLossSpike);
    EXPECT_EQ(parameters_of(run.runtime.store), state);
    for (const double loss : {1e3, 1e1, 1e-1, 1e2}) watch.add(loss, 1e-6);
    EXPECT_EQ(loop.next().skip.value().reason, kNormSpike);
    EXPECT_EQ(run.runtime.optimizer->applied_updates(), 2);
    EXPECT_EQ(parameters_of(run.runtime.store), state);
    for (const double norm : {1e3, 1e1, 1e-1, 1e2}) watch.add(norm, norm);
    EXPECT_FALSE(loop.next().skip);
    EXPECT_EQ(run.runtime.optimizer->applied_updates(), 3);
  }
}

}  // namespace
}  // namespace trireme
