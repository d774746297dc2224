// Saving on several ranks while the system refuses any call of any of them: every rank reports the
// same failure, nobody waits for another, what was saved before stays, the next save works. Run
// with the library of tests/support/faults_preload.cc preloaded.

#include <gtest/gtest.h>

#include <array>
#include <cerrno>
#include <cstdlib>

#include "base/math.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "support/faults_preload.h"
#include "support/mpi_test.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

struct Case {
  FaultKind kind;
  int error;
};
constexpr Case kCases[] = {
    {FaultKind::kFailOnce, ENOSPC}, {FaultKind::kFailFromHere, ENOSPC},
    {FaultKind::kFailOnce, EIO},    {FaultKind::kFailFromHere, EIO},
    {FaultKind::kFailOnce, EDQUOT}, {FaultKind::kFailFromHere, EDQUOT},
    {FaultKind::kShort, 0},
};

struct Tally {
  int trials = 0, refused = 0, lost = 0, phantom = 0, told_differently = 0;
};

class FaultsOnRanks : public testing::Test {
 protected:
  void SetUp() override {
    if (!faults_.preloaded()) GTEST_SKIP() << "the library with the faults is not preloaded";
    Communicator& world = test_world();
    if (world.rank() == 0) {
      // Hundreds of saves, each with its fsyncs: in memory.
      ::setenv("TMPDIR", "/dev/shm", 1);
      own_ = std::make_unique<TemporaryDirectory>();
    }
    directory_ = world.broadcast_text(own_ ? own_->path().string() : "", 0);
    const Shape rows{world.size() * 3 + 1, 40};
    const Slice piece = even_slice(rows[0], world.size(), world.rank());
    tensors_.add(
        {"parameters/rows.weight", DType::kF32, rows, {{piece.begin, 0}, {piece.size, 40}}});
    for (int i = 0; i < 6; ++i) {
      const std::string name = fmt::format("parameters/norm.{}.weight", i);
      tensors_.add({name, DType::kF32, Shape{7}, whole(Shape{7}), world.rank(), world.size()});
    }
    faults_.watch(directory_.string());
  }
  void TearDown() override {
    if (faults_.preloaded()) faults_.disarm();
    test_world().barrier();
  }

  SaveResult save(std::int64_t step) {
    tensors_.fill(static_cast<std::uint64_t>(step));
    SaveRequest request = request_for(directory_, step, tensors_.state());
    request.retention = {1, 0};
    request.files.push_back({"tokenizer.json", "{}"});
    return save_checkpoint(request, test_world());
  }

  /// One save of `step` on which the fault falls, behind a good one of step - 1.
  void trial(int victim, const Case& fault, int at, std::int64_t step, Tally& tally) {
    Communicator& world = test_world();
    if (world.rank() == victim) faults_.arm(fault.kind, at, fault.error);
    const SaveResult result = save(step);
    if (world.rank() == victim) faults_.disarm();
    ++tally.trials;
    tally.refused += result.saved() ? 0 : 1;
    for (const std::string& text : world.all_gather_text(result.error))
      tally.told_differently += text == result.error ? 0 : 1;
    world.barrier();
    if (world.rank() == 0) look(result, step, tally);
    world.barrier();
  }

  void look(const SaveResult& result, std::int64_t step, Tally& tally) {
    const auto found = list_checkpoints(directory_);
    bool newest = false, before = false;
    for (const CheckpointInfo& info : found) {
      const bool good = info.problem.empty() && verify_checkpoint(info.path).empty();
      tally.phantom += good ? 0 : 1;
      newest = newest || (good && info.step == step);
      before = before || (good && info.step == step - 1);
    }
    tally.lost += newest || before ? 0 : 1;
    // What was reported is what is there; one refused after the rename is there all the same.
    tally.phantom += result.saved() && !newest ? 1 : 0;
  }

  FaultsInProcess faults_;
  std::unique_ptr<TemporaryDirectory> own_;
  std::filesystem::path directory_;
  TestState tensors_;
};

TEST_F(FaultsOnRanks, a_refused_call_of_any_rank_is_reported_by_all_and_loses_nothing) {
  Communicator& world = test_world();
  Tally tally;
  std::int64_t step = 1;
  ASSERT_EQ(save(step).error, "");
  for (int victim = 0; victim < world.size(); ++victim) {
    faults_.disarm();
    ASSERT_EQ(save(++step).error, "");
    std::array<std::int64_t, 1> calls{world.rank() == victim ? faults_.calls() : 0};
    world.sum(calls);
    ASSERT_GT(calls[0], 4) << "rank " << victim << " writes nothing";
    for (const Case& fault : kCases) {
      for (int at = 0; at < calls[0]; ++at) {
        trial(victim, fault, at, ++step, tally);
        ASSERT_EQ(save(++step).error, "") << "after a fault at call " << at;
      }
    }
  }
  EXPECT_EQ(tally.lost, 0);
  EXPECT_EQ(tally.phantom, 0);
  EXPECT_EQ(tally.told_differently, 0);
  EXPECT_GT(tally.refused, tally.trials / 2) << "most calls matter";
  if (world.rank() == 0) {
    fmt::print("refused calls on {} ranks: {} trials, {} refused, {} lost, {} phantom, 0 hung\n",
               world.size(), tally.trials, tally.refused, tally.lost, tally.phantom);
  }
}

}  // namespace
}  // namespace trireme
