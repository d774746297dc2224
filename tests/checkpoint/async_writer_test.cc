// Saving beside training, on one rank: what is in the file, who waits for whom, how it ends.

#include "checkpoint/async_writer.h"

#include <gtest/gtest.h>

#include <atomic>
#include <future>
#include <thread>

#include "checkpoint/reader.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

class AsyncSaving : public testing::Test {
 protected:
  void SetUp() override {
    add_odd_tensors(tensors_);
    tensors_.add_whole("parameters/large", Shape{600, 500});  // 1.2 MB
    tensors_.fill(1);
    tensors_.state().scalars["adam_step"] = 7;
  }
  SaveRequest request(std::int64_t step) { return request_for(directory_, step, tensors_.state()); }
  /// What a training loop does at a step's end.
  std::optional<SaveResult> after_a_step(AsyncWriter& writer) {
    return writer.advance(WriterStates(writer.state()));
  }
  std::string difference(const std::filesystem::path& path, std::uint64_t salt) {
    TestState loaded;
    for (const StateTensor& tensor : tensors_.state().tensors)
      loaded.add_whole(tensor.name, tensor.global_shape, tensor.dtype);
    load_state(path, loaded.state(), *world_);
    return loaded.first_difference(salt);
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    std::error_code absent;
    for (const auto& entry : std::filesystem::directory_iterator(directory_, absent))
      names.push_back(entry.path().filename().string());
    return names;
  }

  TemporaryDirectory temporary_;
  std::filesystem::path directory_ = temporary_ / "checkpoints";
  std::unique_ptr<Communicator> world_ = make_self_communicator();
  TestState tensors_;
};

TEST_F(AsyncSaving, writes_the_same_bytes_as_a_save_that_is_waited_for) {
  ASSERT_EQ(save_checkpoint(request(1), *world_).error, "");
  AsyncWriter writer(*world_, tensors_.state(), {});
  SaveRequest beside = request(1);
  beside.directory = temporary_ / "beside";
  ASSERT_FALSE(writer.begin(beside));
  tensors_.fill(2);  // at once
  std::optional<SaveResult> ended;
  while (!(ended = after_a_step(writer))) std::this_thread::yield();
  ASSERT_EQ(ended->error, "");
  EXPECT_EQ(ended->step, 1);
  EXPECT_EQ(ended->path, temporary_ / "beside/step-00000001");
  EXPECT_GT(ended->seconds, 0);
  EXPECT_FALSE(writer.busy());
  // The library notes the time of each object, so the files differ there and in their frames' hash.
  const Manifest waited = read_manifest(directory_ / "step-00000001"),
                 other = read_manifest(ended->path);
  ASSERT_EQ(waited.tensors.size(), other.tensors.size());
  for (std::size_t i = 0; i < waited.tensors.size(); ++i) {
    EXPECT_EQ(waited.tensors[i].name, other.tensors[i].name);
    const auto &expected = waited.tensors[i].shards, &got = other.tensors[i].shards;
    ASSERT_EQ(expected.size(), got.size());
    for (std::size_t j = 0; j < got.size(); ++j) {
      EXPECT_EQ(expected[j].hash, got[j].hash);
      EXPECT_EQ(expected[j].dataset, got[j].dataset);
      EXPECT_EQ(expected[j].byte_offset, got[j].byte_offset);
    }
  }
  EXPECT_TRUE(verify_checkpoint(ended->path).empty());
}

TEST_F(AsyncSaving, what_changes_behind_the_copy_is_not_in_the_file_however_short_the_memory) {
  for (const std::int64_t staging_bytes : {0, 1 << 20}) {
    AsyncWriter writer(*world_, tensors_.state(), {staging_bytes});
    EXPECT_LE(writer.staging_bytes(), staging_bytes == 0 ? 2 << 20 : staging_bytes);
    for (std::uint64_t step = 1; step <= 3; ++step) {
      tensors_.fill(step);
      ASSERT_FALSE(writer.begin(request(static_cast<std::int64_t>(step))));
      tensors_.fill(99);
      const SaveResult saved = writer.finish();
      ASSERT_EQ(saved.error, "");
      EXPECT_EQ(difference(saved.path, step), "") << staging_bytes;
      EXPECT_TRUE(verify_checkpoint(saved.path).empty());
    }
  }
}

TEST_F(AsyncSaving, who_waits_anyway_needs_no_copy_and_gets_the_tensors_back_when_all_is_written) {
  for (const Meanwhile saves : {Meanwhile::kChange, Meanwhile::kStay}) {
    AsyncWriter writer(*world_, tensors_.state(), {0, nullptr, saves});
    EXPECT_EQ(writer.staging_bytes() == 0, saves == Meanwhile::kStay);
    for (std::uint64_t step = 1; step <= 2; ++step) {
      tensors_.fill(step);
      ASSERT_FALSE(writer.begin(request(static_cast<std::int64_t>(step)), Meanwhile::kStay));
      EXPECT_NE(writer.state(), WriterState::kBusy);
      tensors_.fill(99);
      const SaveResult saved = writer.finish();
      ASSERT_EQ(saved.error, "");
      EXPECT_EQ(difference(saved.path, step), "");
      EXPECT_TRUE(verify_checkpoint(saved.path).empty());
    }
    SaveRequest faulty = request(3);
    faulty.on_phase = [](SavePhase now) {
      if (now == SavePhase::kShards) throw DataError("it fails");
    };
    ASSERT_FALSE(writer.begin(faulty, Meanwhile::kStay));
    EXPECT_EQ(writer.state(), WriterState::kFailed);
    EXPECT_EQ(writer.finish().error, "it fails");
  }
}

TEST_F(AsyncSaving, beginning_does_not_wait_for_the_file) {
  AsyncWriter writer(*world_, tensors_.state(), {});
  std::promise<void> gate;
  SaveRequest slow = request(5);
  slow.on_phase = [&, open = gate.get_future().share()](SavePhase phase) {
    if (phase == SavePhase::kRankFile) open.wait();
  };
  ASSERT_FALSE(writer.begin(slow));
  EXPECT_TRUE(writer.busy());
  EXPECT_EQ(writer.step(), 5);
  for (int step = 0; step < 3; ++step) EXPECT_FALSE(after_a_step(writer));
  EXPECT_EQ(writer.state(), WriterState::kBusy);
  EXPECT_GT(writer.last_progress_ns().load(), 0);
  EXPECT_THROW(writer.begin(request(6)), InternalError) << "one at a time";
  gate.set_value();
  EXPECT_EQ(writer.finish().error, "");
  EXPECT_EQ(writer.last_progress_ns().load(), 0);
}

TEST_F(AsyncSaving, with_too_little_memory_beginning_waits_until_the_writer_took_the_rest) {
  AsyncWriter writer(*world_, tensors_.state(), {1 << 20});
  ASSERT_EQ(writer.staging_bytes(), 1 << 20);
  std::atomic<bool> opened = false;
  std::promise<void> gate;
  SaveRequest slow = request(5);
  slow.on_phase = [&, open = gate.get_future().share()](SavePhase phase) {
    if (phase == SavePhase::kRankFile) open.wait();
  };
  std::thread opener([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
    opened = true;
    gate.set_value();
  });
  ASSERT_FALSE(writer.begin(slow));
  EXPECT_TRUE(opened);
  tensors_.fill(99);
  opener.join();
  const SaveResult saved = writer.finish();
  EXPECT_EQ(saved.error, "");
  EXPECT_EQ(difference(saved.path, 1), "");
}

TEST_F(AsyncSaving, a_failure_in_any_phase_is_reported_and_leaves_nothing_and_the_next_save_works) {
  AsyncWriter writer(*world_, tensors_.state(), {1 << 20});
  for (int phase = 0; phase <= static_cast<int>(SavePhase::kCommit); ++phase) {
    SaveRequest faulty = request(1);
    faulty.on_phase = [&](SavePhase now) {
      if (now == static_cast<SavePhase>(phase)) throw DataError("phase {} fails", phase);
    };
    std::optional<SaveResult> failed = writer.begin(faulty);
    if (!failed) failed = writer.finish();
    EXPECT_EQ(failed->error, fmt::format("phase {} fails", phase));
    EXPECT_EQ(failed->step, 1);
    EXPECT_TRUE(entries().empty()) << phase;
    ASSERT_FALSE(writer.begin(request(2)));
    const SaveResult saved = writer.finish();
    EXPECT_EQ(saved.error, "");
    EXPECT_EQ(difference(saved.path, 1), "");
    std::filesystem::remove_all(saved.path);
  }
}

TEST_F(AsyncSaving, the_last_call_before_the_rename_is_the_callers) {
  SaveRequest careful = request(1);
  bool called = false;
  careful.before_commit = [&] {
    called = true;
    EXPECT_FALSE(std::filesystem::exists(directory_ / "step-00000001"));
    EXPECT_EQ(entries().size(), 1U);
  };
  EXPECT_EQ(save_checkpoint(careful, *world_).error, "");
  EXPECT_TRUE(called);
}

TEST_F(AsyncSaving, one_that_is_given_up_is_a_leftover) {
  ASSERT_EQ(save_checkpoint(request(1), *world_).error, "");
  {
    AsyncWriter writer(*world_, tensors_.state(), {});
    ASSERT_FALSE(writer.begin(request(2)));
  }
  EXPECT_EQ(remove_leftovers(directory_), "");
  EXPECT_EQ(entries(), std::vector<std::string>{"step-00000001"});
  EXPECT_EQ(save_checkpoint(request(2), *world_).error, "");
}

}  // namespace
}  // namespace trireme
