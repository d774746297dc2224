// Saving beside training on several ranks: a writer that fails on any rank in any phase is reported
// on all of them, nobody waits for ever, and the next save works.

#include <gtest/gtest.h>

#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "shared_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

enum class Way { kWaiting, kBeside, kInPlace };

/// As a training loop saves: states are reported once a step.
SaveResult save(AsyncWriter& writer, const SaveRequest& request, Way way) {
  Communicator& world = test_world();
  const Meanwhile meanwhile = way == Way::kInPlace ? Meanwhile::kStay : Meanwhile::kChange;
  if (std::optional<SaveResult> failed = writer.begin(request, meanwhile)) return *failed;
  if (way != Way::kBeside) return writer.finish();
  for (;;) {
    const WriterStates states = WriterStates::of_all(writer.state(), world);
    if (std::optional<SaveResult> result = writer.advance(states)) return *result;
  }
}

/// Each rank has rows of its own and a copy of what all have.
void add_pieces(TestState& tensors) {
  const int rank = test_world().rank(), ranks = test_world().size();
  const Shape rows{ranks * 200, 300}, shared{700, 500};
  tensors.add({"parameters/rows", DType::kF32, rows, {Shape{rank * 200, 0}, Shape{200, 300}}});
  tensors.add({"parameters/shared", DType::kF32, shared, whole(shared), rank, ranks});
  tensors.add({"parameters/norm", DType::kF32, Shape{50}, whole(Shape{50}), rank, ranks});
}

std::size_t entries_of(const std::filesystem::path& directory) {
  test_world().barrier();
  const auto count = std::distance(std::filesystem::directory_iterator(directory), {});
  test_world().barrier();
  return static_cast<std::size_t>(count);
}

TEST(AsyncSavingOnRanks, is_the_same_as_waiting_and_what_changes_meanwhile_does_not_leak) {
  for (const std::int64_t staging_bytes : {0, 1 << 20}) {
    SharedDirectory directory;
    TestState tensors;
    add_pieces(tensors);
    AsyncWriter writer(test_world(), tensors.state(), {staging_bytes});
    for (std::int64_t step = 1; step <= 6; ++step) {
      const auto salt = static_cast<std::uint64_t>(step);
      tensors.fill(salt);
      SaveRequest request = request_for(directory.path(), step, tensors.state());
      if (step % 3 != 0) {
        const Way way = step % 3 == 1 ? Way::kWaiting : Way::kInPlace;
        ASSERT_EQ(save(writer, request, way).error, "");
      } else {
        ASSERT_FALSE(writer.begin(request));
        tensors.fill(99);
        ASSERT_EQ(writer.finish().error, "");
      }
      tensors.clear();
      load_state(directory.path() / step_folder_name(step), tensors.state(), test_world());
      EXPECT_EQ(tensors.first_difference(salt), "");
      test_world().barrier();
    }
  }
}

TEST(AsyncSavingOnRanks, a_failure_on_any_rank_in_any_phase_is_seen_by_all_and_the_next_one_works) {
  SharedDirectory directory;
  TestState tensors;
  add_pieces(tensors);
  tensors.fill(1);
  const int me = test_world().rank(), ranks = test_world().size();
  AsyncWriter writer(test_world(), tensors.state(), {1 << 20});
  for (const Way way : {Way::kWaiting, Way::kBeside, Way::kInPlace}) {
    for (int phase = 0; phase <= static_cast<int>(SavePhase::kCommit); ++phase) {
      const auto at = static_cast<SavePhase>(phase);
      const bool of_every_rank = at == SavePhase::kRankFile || at == SavePhase::kShards;
      for (int guilty = 0; guilty < (of_every_rank ? ranks : 1); ++guilty) {
        SaveRequest faulty = request_for(directory.path(), 1, tensors.state());
        faulty.on_phase = [&](SavePhase now) {
          if (now == at && me == guilty) throw DataError("phase {} fails", phase);
        };
        const SaveResult failed = save(writer, faulty, way);
        EXPECT_EQ(failed.error, fmt::format("rank {}: phase {} fails", guilty, phase));
        EXPECT_EQ(entries_of(directory.path()), 0U) << phase << " on " << guilty;
        const SaveResult saved =
            save(writer, request_for(directory.path(), 2, tensors.state()), way);
        ASSERT_EQ(saved.error, "") << phase << " on " << guilty;
        EXPECT_EQ(entries_of(directory.path()), 1U);
        if (me == 0) {
          EXPECT_TRUE(verify_checkpoint(saved.path).empty());
          std::filesystem::remove_all(saved.path);
        }
        test_world().barrier();
      }
    }
  }
}

TEST(AsyncSavingOnRanks, of_several_failures_all_ranks_report_the_lowest) {
  SharedDirectory directory;
  TestState tensors;
  add_pieces(tensors);
  tensors.fill(1);
  AsyncWriter writer(test_world(), tensors.state(), {});
  SaveRequest faulty = request_for(directory.path(), 1, tensors.state());
  faulty.on_phase = [&](SavePhase now) {
    if (now == SavePhase::kShards && test_world().rank() > 0)
      throw DataError("of rank {}", test_world().rank());
  };
  const std::string error = save(writer, faulty, Way::kBeside).error;
  // A rank that fails cancels the others: which of them came to fail themselves is a matter of
  // time.
  EXPECT_TRUE(error.starts_with("rank ") && error.find(": of rank ") != std::string::npos) << error;
  for (const std::string& other : test_world().all_gather_text(error)) EXPECT_EQ(other, error);
}

/// A rank whose file system is slow keeps nobody from training.
TEST(AsyncSavingOnRanks, a_slow_rank_holds_up_the_end_of_the_save_and_not_the_steps) {
  SharedDirectory directory;
  TestState tensors;
  add_pieces(tensors);
  tensors.fill(1);
  Communicator& world = test_world();
  AsyncWriter writer(world, tensors.state(), {});
  std::atomic<int> steps = 0;
  SaveRequest slow = request_for(directory.path(), 1, tensors.state());
  slow.on_phase = [&](SavePhase now) {
    if (now != SavePhase::kShards || world.rank() != world.size() - 1) return;
    while (steps < 20) std::this_thread::yield();
  };
  ASSERT_FALSE(writer.begin(slow));
  std::optional<SaveResult> result;
  while (!result) {
    result = writer.advance(WriterStates::of_all(writer.state(), world));
    ++steps;
  }
  EXPECT_EQ(result->error, "");
  EXPECT_GE(steps, 20);
}

}  // namespace
}  // namespace trireme
