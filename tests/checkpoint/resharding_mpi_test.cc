// Saving on n ranks and loading on m: every rank of the test belongs to a saving group and to a
// loading group.

#include <gtest/gtest.h>

#include <array>

#include "base/math.h"
#include "checkpoint/async_writer.h"
#include "checkpoint/reader.h"
#include "manifest_kinds.h"
#include "shared_directory.h"
#include "support/save_checkpoint.h"
#include "test_state.h"

namespace trireme {
namespace {

Box piece_of(const Shape& shape, int dim, int pieces, int index) {
  Box box = whole(shape);
  const Slice piece = even_slice(shape[dim], pieces, index);
  box.offset.set(dim, piece.begin);
  box.shape.set(dim, piece.size);
  return box;
}

/// What rank `rank` of `size` holds: tensors sharded by rows, by columns (some ranks get nothing),
/// and replicas everywhere.
void add_pieces(TestState& state, int rank, int size) {
  const auto add = [&](const std::string& name, const Shape& shape, int dim) {
    state.add({name, DType::kF32, shape, piece_of(shape, dim, size, rank)});
  };
  add("parameters/rows.weight", Shape{101, 7}, 0);
  add("parameters/columns.weight", Shape{13, 55}, 1);
  add("parameters/few.weight", Shape{2, 3, 5}, 0);
  for (const auto& [name, shape] : {std::pair{"parameters/norm.weight", Shape{72}},
                                    std::pair{"parameters/large.weight", Shape{530, 401}},
                                    std::pair{"parameters/scale", Shape{}},
                                    std::pair{"optimizer/norm.weight/exp_avg", Shape{72}}}) {
    state.add({name, DType::kF32, shape, whole(shape), rank, size});
  }
}

std::unique_ptr<Communicator> first_ranks(int count) {
  return test_world().split(test_world().rank() < count ? 0 : 1);
}

/// Rows of all ranks stand as at most two runs: slices of two sizes.
void expect_few_runs(Communicator& group, const SharedDirectory& directory, int step) {
  const Manifest manifest = read_manifest(directory.path() / step_folder_name(step), group);
  EXPECT_TRUE(manifest.split);
  EXPECT_LE(manifest.find("parameters/rows.weight")->runs.size(), 2u);
  EXPECT_EQ(manifest.find("parameters/rows.weight")->shard_count(), step) << "savers";
}

class Resharding : public testing::TestWithParam<ManifestKind> {};
INSTANTIATE_TEST_SUITE_P(Manifests, Resharding, both_kinds(), name_of_kind);

TEST_P(Resharding, any_number_of_ranks_reads_what_any_number_saved) {
  const int world = test_world().size();
  for (int savers = 1; savers <= world; ++savers) {
    SharedDirectory directory;
    const auto save_group = first_ranks(savers);
    if (test_world().rank() < savers) {
      TestState tensors;
      add_pieces(tensors, save_group->rank(), savers);
      tensors.fill(1);
      SaveRequest request = request_for(directory.path(), savers, tensors.state());
      request.listed_shards_max = listed_shards_max(GetParam());
      ASSERT_EQ(save_checkpoint(request, *save_group).error, "");
    }
    test_world().barrier();
    for (int loaders = 1; loaders <= world; ++loaders) {
      const auto load_group = first_ranks(loaders);
      if (test_world().rank() < loaders) {
        TestState tensors;
        add_pieces(tensors, load_group->rank(), loaders);
        load_state(directory.path() / step_folder_name(savers), tensors.state(), *load_group);
        EXPECT_EQ(tensors.first_difference(1), "") << savers << " -> " << loaders;
        if (GetParam() == ManifestKind::kSplit) expect_few_runs(*load_group, directory, savers);
        EXPECT_EQ(find_newest_valid(directory.path(), *load_group).path,
                  directory.path() / step_folder_name(savers));
      }
    }
  }
}

TEST(ReshardingSaves, a_replicated_box_stands_once_and_its_writing_is_shared_out) {
  SharedDirectory directory;
  TestState tensors;
  const int ranks = test_world().size();
  for (int i = 0; i < 40; ++i) {
    const std::string name = fmt::format("parameters/layers.{}.norm.weight", i);
    tensors.add({name, DType::kF32, Shape{300}, whole(Shape{300}), test_world().rank(), ranks});
  }
  const Shape large{1024, 512};
  tensors.add(
      {"parameters/embed.weight", DType::kF32, large, whole(large), test_world().rank(), ranks});
  tensors.fill(2);
  const SaveResult saved =
      save_checkpoint(request_for(directory.path(), 1, tensors.state()), test_world());
  ASSERT_EQ(saved.error, "");
  EXPECT_EQ(saved.bytes, (40 * 300 + 1024 * 512) * 4);
  const Manifest manifest = read_manifest(saved.path);  // which refuses overlaps
  const ManifestTensor& embed = *manifest.find("parameters/embed.weight");
  ASSERT_EQ(embed.shards.size(), static_cast<std::size_t>(ranks));
  for (int i = 0; i < ranks; ++i) {
    const Slice rows = even_slice(large[0], ranks, i);
    EXPECT_EQ(embed.shards[static_cast<std::size_t>(i)].box,
              (Box{{rows.begin, 0}, {rows.size, 512}}));
  }
  std::map<std::string, int> small_of_file;
  for (const ManifestTensor& tensor : manifest.tensors) {
    if (tensor.shards.size() == 1) ++small_of_file[tensor.shards[0].file];
  }
  EXPECT_EQ(small_of_file.size(), static_cast<std::size_t>(ranks))
      << "every rank writes some of the small ones";
}

TEST(ReshardingSaves, a_rank_that_cannot_write_fails_the_save_on_all_and_the_next_one_works) {
  SharedDirectory directory;
  TestState tensors;
  add_pieces(tensors, test_world().rank(), test_world().size());
  tensors.fill(1);
  const int last = test_world().size() - 1;
  // A tensor whose dataset stands twice in the last rank's file.
  TestState broken;
  broken.add({"parameters/twice", DType::kF32, Shape{4}, whole(Shape{4})});
  broken.add({"parameters/twice", DType::kF32, Shape{4}, whole(Shape{4})});
  const bool faulty = test_world().rank() == last;
  const SaveResult failed = save_checkpoint(
      request_for(directory.path(), 1, faulty ? broken.state() : tensors.state()), test_world());
  EXPECT_NE(failed.error.find(fmt::format("rank {}: ", last)), std::string::npos) << failed.error;
  EXPECT_NE(failed.error.find("parameters/twice"), std::string::npos) << failed.error;
  test_world().barrier();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
  test_world().barrier();
  EXPECT_EQ(save_checkpoint(request_for(directory.path(), 1, tensors.state()), test_world()).error,
            "");
}

TEST(ReshardingSaves, a_hole_between_the_ranks_is_never_committed) {
  SharedDirectory directory;
  TestState tensors;
  const Shape shape{test_world().size() * 4, 3};
  // Every rank says that it holds one copy of nine and leaves the writing to another, which is not
  // there.
  const Box box = piece_of(shape, 0, test_world().size(), test_world().rank());
  const std::string name = "parameters/rows";
  ASSERT_EQ(share_of_replica({name, box, 4, 0, 9}).shape.count(), 0);
  tensors.add({name, DType::kF32, shape, box, 0, 9});
  tensors.fill(1);
  const SaveResult saved =
      save_checkpoint(request_for(directory.path(), 1, tensors.state()), test_world());
  EXPECT_NE(saved.error.find("its shards hold 0 of"), std::string::npos) << saved.error;
  test_world().barrier();
  EXPECT_TRUE(std::filesystem::is_empty(directory.path()));
}

TEST(Resharding, every_rank_names_a_damaged_shard) {
  SharedDirectory directory;
  TestState tensors;
  add_pieces(tensors, test_world().rank(), test_world().size());
  tensors.fill(1);
  const SaveResult saved =
      save_checkpoint(request_for(directory.path(), 1, tensors.state()), test_world());
  ASSERT_EQ(saved.error, "");
  if (test_world().rank() == 0) std::filesystem::resize_file(saved.path / "rank-00001.h5", 4096);
  test_world().barrier();
  try {
    load_state(saved.path, tensors.state(), test_world());
    ADD_FAILURE() << "loaded a damaged checkpoint";
  } catch (const DataError&) {
    ADD_FAILURE() << "an error of one rank only";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::kData);
    EXPECT_NE(std::string(error.what()).find("rank-00001.h5"), std::string::npos) << error.what();
  }
  const NewestCheckpoint newest = find_newest_valid(directory.path(), test_world());
  EXPECT_EQ(newest.path, "");
  EXPECT_EQ(newest.rejected.size(), 1u);
}

}  // namespace
}  // namespace trireme
