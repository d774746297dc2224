#include "store/store_layout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace trireme {
namespace {

/// Block 0: an embedding; block 1: a fused pair and a vector; block 2: a vector.
std::vector<ParamMeta> some_params() {
  std::vector<ParamMeta> params(5);
  const auto declare = [&](std::size_t i, const char* name, Shape shape, int block) {
    params[i].name = name;
    params[i].shape = shape;
    params[i].block = block;
  };
  declare(0, "embed", {7, 6}, 0);
  declare(1, "q", {8, 6}, 1);
  declare(2, "k", {4, 6}, 1);
  params[2].fuse = Fuse::kWithPrevious;
  declare(3, "norm", {6}, 1);
  declare(4, "bias", {9}, 2);
  params[0].cut.segments = {{7, 7}};
  params[1].cut.segments = {{8, 4}};
  params[2].cut.segments = {{4, 2}};
  return params;
}

ParamDistribution distribution_of(int stage, AxisRank shard, AxisRank tensor = {}) {
  return dense_distribution(stage, {tensor, shard, {}});
}

TEST(StoreLayout, groups_begin_on_a_line_and_fused_ranges_are_together) {
  const StoreLayout layout(some_params(), distribution_of(0, {}));
  EXPECT_EQ(layout.local_offset(0), 0);
  EXPECT_EQ(layout.local_offset(1), 48);
  EXPECT_EQ(layout.local_offset(2), 48 + 48);  // directly behind q
  EXPECT_EQ(layout.local_offset(3), 128);      // 120 rounded up to 16
  EXPECT_EQ(layout.local_offset(4), 144);
  EXPECT_EQ(layout.local_size(), 160);
  EXPECT_EQ(layout.local_block(1).begin, 48);
  EXPECT_EQ(layout.local_block(1).size, 96);
  EXPECT_EQ(layout.largest_block([](int block) { return block != 1; }), 48);
  EXPECT_EQ(layout.largest_block([](int) { return true; }), 96);
}

TEST(StoreLayout, shards_take_the_room_of_the_largest_at_the_same_place_for_all) {
  // 7 rows of 6 over 3: 3, 2, 2 rows; 8 rows: 3, 3, 2; 4 rows: 2, 1, 1; 6: 2 each; 9: 3 each.
  const std::vector<std::int64_t> offsets = {0, 32, 64, 80, 96};
  for (int owner = 0; owner < 3; ++owner) {
    const StoreLayout layout(some_params(), distribution_of(1, {3, owner}));
    for (ParamIndex i = 0; i < 5; ++i)
      EXPECT_EQ(layout.shard_offset(i), offsets[static_cast<std::size_t>(i)]);
    EXPECT_EQ(layout.shard_size(), 112);
    EXPECT_EQ(layout.owned_shape(0), (Shape{owner == 0 ? 3 : 2, 6}));
    EXPECT_EQ(layout.shard_block(1, MeshView::kDense).begin, 32);
    EXPECT_EQ(layout.shard_block(1, MeshView::kDense).size, 64);
  }
}

TEST(StoreLayout, shards_without_zero_and_blocks_out_of_order_are_refused) {
  EXPECT_THROW(StoreLayout(some_params(), distribution_of(0, {2, 0})), InternalError);
  std::vector<ParamMeta> params = some_params();
  params[4].block = 0;
  EXPECT_THROW(StoreLayout(params, distribution_of(0, {})), InternalError);
}

/// Adds to `local` how often the shards of `owner` bring each element of a block's local span, and
/// expects that no two stand in one place.
void count_shards(const StoreLayout& layout, int block, int owner, int owners,
                  std::vector<int>& local) {
  std::vector<int> shard(
      static_cast<std::size_t>(layout.shard_block(block, MeshView::kDense).size));
  for (const ShardedTensor& tensor : layout.sharded_tensors(block, MeshView::kDense)) {
    Slice rows = {0, tensor.owner == owner ? tensor.rows : 0};
    if (tensor.owner < 0) rows = even_slice(tensor.rows, owners, owner);
    for (std::int64_t i = 0; i < rows.size * tensor.row_elements; ++i) {
      ++local.at(static_cast<std::size_t>(tensor.local + rows.begin * tensor.row_elements + i));
      ASSERT_EQ(++shard.at(static_cast<std::size_t>(tensor.shard + i)), 1);
    }
  }
}

/// Every element of a parameter once, the gaps between groups never.
std::vector<int> once_each(const StoreLayout& layout, int block) {
  std::vector<int> expected(static_cast<std::size_t>(layout.local_block(block).size));
  const ParamRange range = layout.block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    const std::int64_t begin = layout.local_offset(i) - layout.local_block(block).begin;
    if (layout.has_room(i)) std::fill_n(expected.begin() + begin, layout.local_shape(i).count(), 1);
  }
  return expected;
}

/// With more owners than rows some own nothing.
TEST(StoreLayout, every_element_of_a_block_stands_in_one_shard) {
  std::vector<ParamMeta> whole = some_params(), trained = some_params();
  for (const int i : {0, 1, 2, 4}) whole[static_cast<std::size_t>(i)].ownership = Ownership::kWhole;
  trained[1].trainable = trained[2].trainable = false;
  for (const std::vector<ParamMeta>& params : {some_params(), whole, trained}) {
    for (const AxisRank tensor : {AxisRank{1, 0}, AxisRank{2, 1}}) {
      for (const int shards : {1, 2, 3, 5, 11}) {
        const StoreLayout layout(params, distribution_of(3, {shards, 0}, tensor),
                                 StoreLayout::Of::kGradients);
        for (int block = 0; block < layout.block_count(); ++block) {
          const std::vector<int> expected = once_each(layout, block);
          std::vector<int> local(expected.size());
          for (int owner = 0; owner < shards; ++owner)
            count_shards(layout, block, owner, shards, local);
          ASSERT_EQ(local, expected) << "block " << block << ", " << shards << " shards";
        }
      }
    }
  }
}

TEST(StoreLayout, parameters_that_are_owned_whole_share_a_room_by_turns) {
  std::vector<ParamMeta> params = some_params();
  for (ParamMeta& param : params) param.ownership = Ownership::kWhole;
  // Of block 1 q, k and the norm go to ranks 0, 1 and 2, all in the room of q.
  for (int rank = 0; rank < 3; ++rank) {
    const StoreLayout layout(params, distribution_of(1, {3, rank}));
    EXPECT_EQ(layout.shard_block(1, MeshView::kDense).size, 48);
    for (ParamIndex i = 1; i <= 3; ++i) {
      EXPECT_EQ(layout.shard_offset(i), layout.shard_offset(1));
      EXPECT_EQ(layout.owned(i).size, i == rank + 1 ? layout.local_shape(i)[0] : 0);
    }
  }
  // Two ranks: the norm, third in turn, has a room of its own.
  const StoreLayout two(params, distribution_of(1, {2, 0}));
  EXPECT_EQ(two.shard_offset(3), two.shard_offset(1) + 48);
  EXPECT_EQ(two.owned(3).size, 6);
}

TEST(StoreLayout, padding_follows_the_rows_of_each_place_and_is_owned_by_nobody) {
  std::vector<ParamMeta> params = some_params();
  params[0].row_alignment = 16;
  for (const AxisRank tensor : {AxisRank{1, 0}, AxisRank{2, 0}, AxisRank{2, 1}}) {
    const StoreLayout padded(params, distribution_of(1, {2, 0}, tensor));
    const StoreLayout plain(some_params(), distribution_of(1, {2, 0}, tensor));
    EXPECT_EQ(padded.local_shape(0), plain.local_shape(0));
    EXPECT_EQ(padded.padded_shape(0), (Shape{16, 6}));
    EXPECT_EQ(padded.padded_shape(1), padded.local_shape(1));
    EXPECT_EQ(padded.local_offset(1), 16 * 6);
    EXPECT_EQ(padded.local_block(1).size, plain.local_block(1).size);
    EXPECT_EQ(padded.shard_size(), plain.shard_size());
  }
}

TEST(StoreLayout, an_owner_reads_its_rows_where_both_layouts_say) {
  const StoreLayout layout(some_params(), distribution_of(2, {3, 1}));
  const std::vector<ShardedTensor> tensors = layout.sharded_tensors(0, MeshView::kDense);
  ASSERT_EQ(tensors.size(), 1U);
  EXPECT_EQ(tensors[0].local, 0);
  EXPECT_EQ(tensors[0].shard, 0);
  EXPECT_EQ(tensors[0].row_elements, 6);
  // Row 3 of the embedding is the first of owner 1.
  EXPECT_EQ(even_slice(tensors[0].rows, 3, 1).begin, 3);
  EXPECT_EQ(layout.owned(0).begin, 3);
}

}  // namespace
}  // namespace trireme
