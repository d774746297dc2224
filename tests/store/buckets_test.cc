#include "store/buckets.h"

#include <gtest/gtest.h>

namespace trireme {
namespace {

/// An embedding, `layers` layers and a head, each one matrix.
std::vector<ParamMeta> model_of(std::int64_t embedding_rows, std::int64_t layer_rows, int layers) {
  std::vector<ParamMeta> params;
  for (int block = 0; block < layers + 2; ++block) {
    ParamMeta& param = params.emplace_back();
    param.name = std::to_string(block);
    param.shape = {block == 0 || block == layers + 1 ? embedding_rows : layer_rows, 64};
    param.block = block;
  }
  return params;
}

StoreLayout layout_of(const std::vector<ParamMeta>& params, int shards) {
  return {params, dense_distribution(2, {{}, {shards, 0}, {}})};
}

constexpr auto kNothing = [](Buckets::Bucket&) {};

TEST(Buckets, parts_tile_every_block_and_are_those_that_a_plan_counts) {
  // Both larger and smaller than a bucket of 16 MiB.
  for (const std::int64_t layer_rows : {3, 40'000}) {
    const auto params = model_of(150'000, layer_rows, 2);
    const StoreLayout layout = layout_of(params, 2);
    const Buckets buckets(layout, MeshView::kDense, DType::kF32, {});
    std::vector<std::pair<int, std::int64_t>> planned, taken;
    Buckets::for_each_part_of(layout, MeshView::kDense, DType::kF32, [&](int block, Slice part) {
      planned.emplace_back(block, part.begin);
    });
    for (int block = 0; block < layout.block_count(); ++block) {
      std::int64_t end = 0;
      buckets.for_each_part(block, [&](Slice part) {
        EXPECT_EQ(part.begin, end);
        EXPECT_LE(part.size * 2 * 4, 16 << 20);
        end += part.size;
        taken.emplace_back(block, part.begin);
      });
      EXPECT_EQ(end, layout.shard_block(block, MeshView::kDense).size);
    }
    EXPECT_EQ(planned, taken);
    EXPECT_GT(planned.size(), 4U);  // the embedding is split
  }
}

TEST(Buckets, memory_holds_a_layer_under_way_and_the_part_that_is_made) {
  const auto params = model_of(10, 3, 2);
  const StoreLayout layout = layout_of(params, 3);
  // 10 rows over 3 owners: 4 of 64; a part is as large as the largest block, a layer fills one.
  EXPECT_EQ(Buckets::bytes_of(layout, MeshView::kDense, DType::kF32), 2 * 3 * 4 * 64 * 4);
  EXPECT_EQ(Buckets::bytes_of(layout, MeshView::kDense, DType::kBF16), 2 * 3 * 4 * 64 * 2);
}

TEST(Buckets, pieces_of_owners_lie_side_by_side_and_rings_do_not_meet) {
  const auto params = model_of(10, 3, 2);
  const StoreLayout layout = layout_of(params, 3);
  Buckets buckets(layout, MeshView::kDense, DType::kF32, {});
  const Buckets::Bucket& one = buckets.take(0, {0, 256}, kNothing);
  const Buckets::Bucket& other = buckets.take(1, {0, 64}, kNothing);
  EXPECT_EQ(one.shards.count(), 3 * 256);
  EXPECT_EQ(one.shard_of(2).data, one.shards.data + 2 * 256 * 4);
  EXPECT_EQ(other.shard_of(1).count(), 64);
  EXPECT_GE(other.shards.data, one.shards.data + one.shards.bytes());
}

TEST(Buckets, a_place_of_the_ring_is_finished_before_it_is_used_again) {
  const auto params = model_of(10, 3, 2);
  const StoreLayout layout = layout_of(params, 2);
  Buckets buckets(layout, MeshView::kDense, DType::kF32, {});
  std::vector<std::string> log;
  const auto finish = [&](Buckets::Bucket& bucket) {
    log.push_back("finish " + std::to_string(bucket.block));
  };
  for (int block = 0; block < 4; ++block) {
    Buckets::Bucket& bucket = buckets.take(block, {0, 64}, finish);
    bucket.transfer = Pending([&log, block] { log.push_back("wait " + std::to_string(block)); });
  }
  EXPECT_EQ(log, (std::vector<std::string>{"wait 0", "finish 0", "wait 1", "finish 1"}));
  log.clear();
  buckets.finish_until(finish, [&] { return !log.empty(); });
  EXPECT_EQ(log, (std::vector<std::string>{"wait 2", "finish 2"}));
  buckets.finish_until(finish, [] { return false; });
  EXPECT_EQ(log.size(), 4U);
  EXPECT_EQ(log.back(), "finish 3");
  buckets.finish_until(finish, [] { return false; });
  EXPECT_EQ(log.size(), 4U) << "a bucket was finished twice";
}

}  // namespace
}  // namespace trireme
