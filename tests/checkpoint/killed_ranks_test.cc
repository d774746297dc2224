// A rank of several is killed at every call with which a save changes files, in the foreground and
// beside training: what was saved before or after stands and is good, nothing else is seen, and a
// new group of ranks loads it, cleans up and saves again. Run with the library of
// tests/support/faults_preload.cc preloaded. The whole program under a launcher, at fewer calls:
// e2e/torture_test.sh.

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/math.h"
#include "checkpoint/reader.h"
#include "checkpoint/retention.h"
#include "support/faults_preload.h"
#include "support/forked_ranks.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

enum Verdict : int { kGood = 0, kLost = 10, kPhantom = 11, kWrong = 12, kNotSaved = 13 };

/// Rows that each rank has of its own, and replicas that all have.
void add_tensors(TestState& tensors, const Communicator& world) {
  const Shape rows{world.size() * 3 + 1, 40};
  const Slice piece = even_slice(rows[0], world.size(), world.rank());
  tensors.add({"parameters/rows.weight", DType::kF32, rows, {{piece.begin, 0}, {piece.size, 40}}});
  for (int i = 0; i < 4; ++i) {
    const std::string name = fmt::format("parameters/norm.{}.weight", i);
    tensors.add({name, DType::kF32, Shape{7}, whole(Shape{7}), world.rank(), world.size()});
  }
}

class KilledRanks : public testing::TestWithParam<std::tuple<int, Meanwhile>> {
 protected:
  void SetUp() override {
    if (!faults_.preloaded()) GTEST_SKIP() << "the library with the faults is not preloaded";
    ::setenv("TMPDIR", "/dev/shm", 1);  // thousands of saves, each with its fsyncs
    own_ = std::make_unique<TemporaryDirectory>();
    before_ = own_->path() / "before";
    run_ = own_->path() / "run";
    const GroupEnd end = ranks_.run(size(), [&](Communicator& world, ForkedMemory&) {
      return save(world, before_, 2, 2) ? kGood : kNotSaved;
    });
    ASSERT_TRUE(end.all_returned(kGood));
  }
  [[nodiscard]] static int size() { return std::get<0>(GetParam()); }
  [[nodiscard]] static Meanwhile meanwhile() { return std::get<1>(GetParam()); }

  /// Each second step from `first` to `last`. Tensors change as soon as they may.
  static bool save(Communicator& world, const std::filesystem::path& directory, std::int64_t first,
                   std::int64_t last) {
    TestState tensors;
    add_tensors(tensors, world);
    AsyncWriter writer(world, tensors.state(), {.saves = meanwhile()});
    for (std::int64_t step = first; step <= last; step += 2) {
      tensors.fill(static_cast<std::uint64_t>(step));
      SaveRequest request = request_for(directory, step, tensors.state());
      request.retention = {1, 0};
      request.files.push_back({"tokenizer.json", "{}"});
      if (writer.begin(request)) return false;
      if (meanwhile() == Meanwhile::kChange) tensors.fill(99);
      if (!writer.finish().saved()) return false;
    }
    return true;
  }

  /// Saves 4 and 6 over 2, in a new folder. `at` < 0: only counts, into `number`.
  GroupEnd hit(int victim, int at, std::chrono::milliseconds grace) {
    std::filesystem::remove_all(run_);
    std::filesystem::copy(before_, run_, std::filesystem::copy_options::recursive);
    const auto work = [&](Communicator& world, ForkedMemory& memory) {
      faults_.watch(run_.string());
      if (world.rank() == victim) faults_.arm(at < 0 ? FaultKind::kNone : FaultKind::kKill, at, 0);
      const bool saved = save(world, run_, 4, 6);
      if (world.rank() == victim) memory.number = faults_.calls();
      return saved ? kGood : kNotSaved;
    };
    return ranks_.run(size(), work, grace);
  }

  /// What a run that starts again does. Each rank's verdict is that of all.
  Verdict go_on(Communicator& world) {
    std::array<std::int64_t, 1> seen_bad{0};
    if (world.rank() == 0) {
      for (const CheckpointInfo& info : list_checkpoints(run_))
        seen_bad[0] += info.problem.empty() && verify_checkpoint(info.path).empty() ? 0 : 1;
      if (!remove_leftovers(run_).empty()) seen_bad[0] += 1;
    }
    world.maximum(seen_bad);
    if (seen_bad[0] != 0) return kPhantom;
    const NewestCheckpoint newest = find_newest_valid(run_, world);
    if (newest.path.empty()) return kLost;
    TestState tensors;
    add_tensors(tensors, world);
    const std::int64_t step = load_state(newest.path, tensors.state(), world).step;
    std::array<std::int64_t, 1> different{
        tensors.first_difference(static_cast<std::uint64_t>(step)).empty() ? 0 : 1};
    world.maximum(different);
    if (different[0] != 0) return kPhantom;
    if (!save(world, run_, step + 2, step + 2)) return kNotSaved;
    world.barrier();
    const auto entries = std::distance(std::filesystem::directory_iterator(run_), {});
    return entries == 1 ? kGood : kWrong;
  }

  FaultsInProcess faults_;
  ForkedRanks ranks_;
  std::unique_ptr<TemporaryDirectory> own_;
  std::filesystem::path before_, run_;
};

TEST_P(KilledRanks, at_any_call_of_any_rank_nothing_is_lost_and_a_new_group_goes_on) {
  std::array<int, 100> verdicts{};
  int trials = 0, hung = 0, killed = 0;
  for (int victim = 0; victim < size(); ++victim) {
    const GroupEnd counted = hit(victim, -1, {});
    ASSERT_TRUE(counted.all_returned(kGood)) << "rank " << victim;
    ASSERT_GT(counted.number, 8) << "rank " << victim << " writes nothing";
    for (int at = 0; at < counted.number; ++at) {
      // The others end with it, or go on until they wait for it.
      const std::chrono::milliseconds grace(at % 2 == 0 ? 0 : 5);
      const GroupEnd end = hit(victim, at, grace);
      ++trials;
      hung += end.hung ? 1 : 0;
      killed += WIFSIGNALED(end.statuses[static_cast<std::size_t>(victim)]) ? 1 : 0;
      const GroupEnd after =
          ranks_.run(size(), [&](Communicator& world, ForkedMemory&) { return go_on(world); });
      if (after.all_returned(kGood)) continue;
      const int status = after.statuses[0];
      const int verdict = WIFEXITED(status) ? WEXITSTATUS(status) : 98;
      ++verdicts.at(static_cast<std::size_t>(verdict == kGood ? 98 : verdict));
      ADD_FAILURE() << "rank " << victim << " of " << size() << " killed at call " << at << " of "
                    << counted.number << ": " << verdict;
    }
  }
  EXPECT_EQ(hung, 0);
  EXPECT_GT(killed, trials * 9 / 10) << "the calls of a save differ from time to time";
  fmt::print("row|killed at any call of {}, {} ranks, {}|{}|{}|{}|{}|{}\n",
             size() > 1 ? "any rank" : "it", size(),
             meanwhile() == Meanwhile::kStay ? "in the foreground" : "in the background", trials,
             verdicts[kLost], verdicts[kPhantom],
             verdicts[kWrong] + verdicts[kNotSaved] + verdicts[98] + verdicts[99], hung);
}

INSTANTIATE_TEST_SUITE_P(, KilledRanks,
                         testing::Combine(testing::Values(1, 2, 4),
                                          testing::Values(Meanwhile::kStay, Meanwhile::kChange)),
                         [](const auto& at) {
                           return fmt::format(
                               "{}_{}", std::get<0>(at.param),
                               std::get<1>(at.param) == Meanwhile::kStay ? "waiting" : "beside");
                         });

}  // namespace
}  // namespace trireme
