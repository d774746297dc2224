#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>

#include "base/file.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/hdf5_file.h"
#include "checkpoint/reader.h"
#include "manifest_kinds.h"
#include "support/save_checkpoint.h"
#include "support/temporary_directory.h"
#include "test_state.h"

namespace trireme {
namespace {

/// With manifests that list the shards, and with split ones.
class SaveLoad : public testing::TestWithParam<ManifestKind> {
 protected:
  void SetUp() override {
    add_odd_tensors(tensors_);
    tensors_.fill(1);
    tensors_.state().scalars["adam_step"] = 7;
    tensors_.state().scalars["loss_scale"] = 0.1;
  }
  SaveRequest saving(std::int64_t step, const State& state) {
    SaveRequest made = request_for(directory_, step, state);
    made.listed_shards_max = listed_shards_max(GetParam());
    return made;
  }
  SaveResult save(std::int64_t step) {
    return save_checkpoint(saving(step, tensors_.state()), *world_);
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& entry : std::filesystem::directory_iterator(directory_)) {
      names.push_back(entry.path().filename().string());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TemporaryDirectory temporary_;
  std::filesystem::path directory_ = temporary_ / "run/checkpoints";
  std::unique_ptr<Communicator> world_ = make_self_communicator();
  TestState tensors_;
};

TEST_P(SaveLoad, gives_back_every_bit_of_every_shape_and_type) {
  const SaveResult saved = save(12);
  ASSERT_EQ(saved.error, "");
  EXPECT_EQ(saved.path, directory_ / "step-00000012");
  tensors_.clear();
  tensors_.state().scalars = Json();
  const Manifest manifest = load_state(saved.path, tensors_.state(), *world_);
  EXPECT_EQ(tensors_.first_difference(1), "");
  EXPECT_EQ(tensors_.state().scalars.dump(), R"({"adam_step":7,"loss_scale":0.1})");
  EXPECT_EQ(manifest.step, 12);
  EXPECT_EQ(manifest.consumed_samples, 96);
  EXPECT_EQ(manifest.bytes(), saved.bytes);
  EXPECT_TRUE(verify_checkpoint(saved.path).empty());
}

TEST_P(SaveLoad, small_shards_hold_the_same_bits) {
  SaveRequest request = saving(1, tensors_.state());
  request.shard_bytes_max = 100;
  const SaveResult saved = save_checkpoint(request, *world_);
  ASSERT_EQ(saved.error, "");
  EXPECT_EQ(read_manifest(saved.path).find("parameters/embed.weight")->shard_count(), 307);
  tensors_.clear();
  load_state(saved.path, tensors_.state(), *world_);
  EXPECT_EQ(tensors_.first_difference(1), "");
}

TEST_P(SaveLoad, reads_any_box_of_what_was_saved_whole) {
  ASSERT_EQ(save(3).error, "");
  TestState part;
  part.add({"parameters/embed.weight", DType::kF32, Shape{307, 24}, {Shape{100, 5}, Shape{33, 8}}});
  part.add({"parameters/embed.weight", DType::kF32, Shape{307, 24}, {Shape{0, 0}, Shape{1, 24}}});
  part.add({"parameters/norm.weight", DType::kF32, Shape{24}, {Shape{23}, Shape{1}}});
  part.add_whole("parameters/scale", Shape{});
  part.add_whole("parameters/nothing", Shape{0, 5});
  part.add({"parameters/kernel", DType::kF32, Shape{3, 5, 7}, {Shape{1, 1, 1}, Shape{2, 3, 5}}});
  part.add(
      {"parameters/four", DType::kF32, Shape{1, 2, 1, 9}, {Shape{0, 1, 0, 4}, Shape{1, 1, 1, 5}}});
  part.add({"parameters/half.weight", DType::kBF16, Shape{17, 3}, {Shape{16, 0}, Shape{1, 3}}});
  load_state(directory_ / "step-00000003", part.state(), *world_, LoadScope::kParameters);
  EXPECT_EQ(part.first_difference(1), "");
}

TEST_P(SaveLoad, what_a_run_does_not_keep_any_more_is_left_alone_and_what_it_lacks_is_named) {
  ASSERT_EQ(save(3).error, "");
  auto& tensors = tensors_.state().tensors;
  tensors_.clear();
  std::erase_if(tensors, [](const StateTensor& tensor) {
    return tensor.name == "optimizer/embed.weight/exp_avg_sq";
  });
  load_state(directory_ / "step-00000003", tensors_.state(), *world_);
  EXPECT_EQ(tensors_.first_difference(1), "");
  tensors_.add_whole("ema/norm.weight", Shape{24});
  try {
    load_state(directory_ / "step-00000003", tensors_.state(), *world_);
    FAIL() << "averages that nobody has saved";
  } catch (const DataError& error) {
    EXPECT_NE(std::string(error.what()).find("Missing: ema/norm.weight."), std::string::npos);
  }
}

TEST_P(SaveLoad, names_tensors_that_are_missing_or_left_over) {
  ASSERT_EQ(save(3).error, "");
  TestState other;
  other.add_whole("parameters/norm.weight", Shape{24});
  other.add_whole("parameters/new.weight", Shape{4});
  try {
    load_state(directory_ / "step-00000003", other.state(), *world_, LoadScope::kParameters);
    FAIL() << "loaded another model's state";
  } catch (const DataError& error) {
    const std::string text = error.what();
    EXPECT_NE(text.find("Missing: parameters/new.weight."), std::string::npos) << text;
    EXPECT_NE(text.find("Not in the model: parameters/embed.weight, parameters/four"),
              std::string::npos)
        << text;
    EXPECT_EQ(text.find("optimizer/"), std::string::npos) << text;
  }
}

TEST_P(SaveLoad, refuses_another_shape_and_another_type) {
  ASSERT_EQ(save(3).error, "");
  for (const bool other_type : {false, true}) {
    TestState other;
    add_odd_tensors(other);
    StateTensor& norm = other.state().tensors[1];
    if (other_type) {
      norm.dtype = DType::kBF16;
    } else {
      norm.global_shape = Shape{23};
      norm.box = whole(norm.global_shape);
    }
    try {
      load_state(directory_ / "step-00000003", other.state(), *world_);
      FAIL() << "loaded";
    } catch (const DataError& error) {
      EXPECT_NE(
          std::string(error.what()).find("parameters/norm.weight is fp32 [24], the model has"),
          std::string::npos)
          << error.what();
    }
  }
}

TEST_P(SaveLoad, saving_the_same_step_again_replaces_it) {
  ASSERT_EQ(save(5).error, "");
  tensors_.fill(2);
  ASSERT_EQ(save(5).error, "");
  EXPECT_EQ(entries(), std::vector<std::string>{"step-00000005"});
  tensors_.clear();
  load_state(directory_ / "step-00000005", tensors_.state(), *world_);
  EXPECT_EQ(tensors_.first_difference(2), "");
}

TEST_P(SaveLoad, older_checkpoints_go_only_by_the_rule) {
  SaveRequest request = saving(0, tensors_.state());
  request.retention = {2, 4};
  for (request.step = 1; request.step <= 7; ++request.step)
    ASSERT_EQ(save_checkpoint(request, *world_).error, "");
  EXPECT_EQ(entries(),
            (std::vector<std::string>{"step-00000004", "step-00000006", "step-00000007"}));
}

TEST_P(SaveLoad, extra_files_are_kept_and_verified) {
  SaveRequest request = saving(2, tensors_.state());
  request.files.push_back({"tokenizer.json", "{}\n"});
  const SaveResult saved = save_checkpoint(request, *world_);
  ASSERT_EQ(saved.error, "");
  EXPECT_EQ(read_file(saved.path / "tokenizer.json"), "{}\n");
  EXPECT_TRUE(verify_checkpoint(saved.path).empty());
  std::ofstream(saved.path / "tokenizer.json") << "{ }";
  const auto faults = verify_checkpoint(saved.path);
  ASSERT_EQ(faults.size(), 1u);
  EXPECT_EQ(faults[0].file, "tokenizer.json");
}

TEST_P(SaveLoad, a_failed_save_is_a_sentence_and_leaves_nothing) {
  SaveRequest request =
      request_for(temporary_.write("file", "") / "checkpoints", 1, tensors_.state());
  EXPECT_NE(save_checkpoint(request, *world_).error.find("Not a directory"), std::string::npos);
  request.directory = directory_;
  request.min_free_bytes = std::int64_t{1} << 62;
  EXPECT_NE(save_checkpoint(request, *world_).error.find("saving needs"), std::string::npos);
  EXPECT_TRUE(entries().empty());
  temporary_.write("run/checkpoints/step-00000001", "somebody's file");
  EXPECT_NE(save(1).error.find("is in the way"), std::string::npos);
  EXPECT_EQ(entries(), std::vector<std::string>{"step-00000001"});
  ASSERT_EQ(save(2).error, "");
}

TEST_P(SaveLoad, the_newest_that_verifies_is_found_and_others_are_explained) {
  for (const int step : {1, 2, 3, 4}) ASSERT_EQ(save(step).error, "");
  std::filesystem::remove(directory_ / "step-00000004/manifest.json");
  std::filesystem::resize_file(directory_ / "step-00000003/rank-00000.h5", 5000);
  temporary_.write("run/checkpoints/step-00000009.tmp-1-2-3/manifest.json", "{}");
  const NewestCheckpoint newest = find_newest_valid(directory_, *world_);
  EXPECT_EQ(newest.path, directory_ / "step-00000002");
  ASSERT_EQ(newest.rejected.size(), 2u);
  EXPECT_NE(newest.rejected[0].reason.find("manifest.json: cannot open"), std::string::npos);
  EXPECT_NE(newest.rejected[1].reason.find("rank-00000.h5"), std::string::npos);
  EXPECT_EQ(resolve_checkpoint_argument(temporary_ / "run", *world_), newest.path);
  EXPECT_EQ(resolve_checkpoint_argument(directory_, *world_), newest.path);
  EXPECT_EQ(resolve_checkpoint_argument(newest.path, *world_), newest.path);
  EXPECT_THROW(resolve_checkpoint_argument(temporary_ / "nowhere", *world_), DataError);
  EXPECT_THROW(resolve_checkpoint_argument(newest.path / "rank-00000.h5", *world_), DataError);
}

TEST_P(SaveLoad, sizes_and_what_is_known_of_others_choose_without_reading) {
  for (const int step : {1, 2, 3}) ASSERT_EQ(save(step).error, "");
  const std::filesystem::path newest = directory_ / "step-00000003",
                              second = directory_ / "step-00000002";
  EXPECT_EQ(find_newest(directory_, *world_, Check::kSizes).path, newest);
  const NewestCheckpoint other =
      find_newest(directory_, *world_, Check::kSizes, {{newest, "was read and is damaged"}});
  EXPECT_EQ(other.path, second);
  EXPECT_TRUE(other.rejected.empty()) << "what is known is not told again";
  std::filesystem::resize_file(newest / "rank-00000.h5", 5000);
  const NewestCheckpoint by_size = find_newest(directory_, *world_, Check::kSizes);
  EXPECT_EQ(by_size.path, second);
  ASSERT_EQ(by_size.rejected.size(), 1u);
  EXPECT_NE(by_size.rejected[0].reason.find("has 5000 bytes"), std::string::npos);
}

TEST_P(SaveLoad, a_folder_of_another_step_is_refused) {
  ASSERT_EQ(save(1).error, "");
  std::filesystem::rename(directory_ / "step-00000001", directory_ / "step-00000002");
  EXPECT_EQ(find_newest_valid(directory_, *world_).path, "");
  EXPECT_THROW(load_state(directory_ / "step-00000002", tensors_.state(), *world_), DataError);
}

TEST_P(SaveLoad, leftovers_of_dead_runs_go_and_nothing_else) {
  ASSERT_EQ(save(1).error, "");
  for (const char* name :
       {"step-00000002.tmp-1-2-3", ".trash-step-00000000-1", "mine.tmp-1", "notes"}) {
    temporary_.write(std::string("run/checkpoints/") + name + "/file", "x");
  }
  EXPECT_EQ(remove_leftovers(directory_), "");
  EXPECT_EQ(entries(), (std::vector<std::string>{"mine.tmp-1", "notes", "step-00000001"}));
  EXPECT_EQ(remove_leftovers(temporary_ / "nowhere"), "");
}

INSTANTIATE_TEST_SUITE_P(Manifests, SaveLoad, both_kinds(), name_of_kind);

TEST(Retention, keeps_the_saved_the_newest_and_the_multiples) {
  const std::vector<std::int64_t> steps{10, 20, 30, 40, 50, 60};
  EXPECT_EQ(steps_to_remove(steps, 60, {0, 0}), std::vector<std::int64_t>{});
  EXPECT_EQ(steps_to_remove(steps, 60, {1, 0}), (std::vector<std::int64_t>{50, 40, 30, 20, 10}));
  EXPECT_EQ(steps_to_remove(steps, 60, {3, 20}), (std::vector<std::int64_t>{30, 10}));
  EXPECT_EQ(steps_to_remove(steps, 30, {2, 0}), std::vector<std::int64_t>{10}) << "newer ones stay";
  EXPECT_EQ(steps_to_remove(steps, 60, {2, 0, 30}), (std::vector<std::int64_t>{40, 20, 10}))
      << "the best stays beside the newest two";
  EXPECT_EQ(steps_to_remove(steps, 60, {2, 0, 60}), (std::vector<std::int64_t>{30, 20, 10}))
      << "the best is not counted";
  EXPECT_EQ(steps_to_remove(steps, 60, {2, 0, 60, 50}), (std::vector<std::int64_t>{50, 20, 10}))
      << "saved as the best only, which it is no more";
  EXPECT_EQ(steps_to_remove(steps, 60, {2, 50, 60, 50}), (std::vector<std::int64_t>{20, 10}))
      << "another rule keeps it";
}

}  // namespace
}  // namespace trireme
