#include "store/buckets.h"

#include <gtest/gtest.h>

#include <memory>

#include "tensor/buffer.h"
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
constexpr Buckets::Of kOnCpu{MeshView::kDense, DType::kF32, DeviceKind::kCpu};
constexpr Buckets::Of kOnGpu{MeshView::kDense, DType::kF32, DeviceKind::kCuda};

Context cpu_context() { return {{}, 1, detect_isa()}; }

/// A ring of buckets, with a channel for them.
struct Ring {
  std::unique_ptr<Communicator> channel = make_self_communicator();
  Communicator* const pointer = channel.get();
  Buckets buckets;
  Ring(Context& context, const StoreLayout& layout)
      : buckets(context, layout, MeshView::kDense, DType::kF32, {&pointer, 1}) {}
};

TEST(Buckets, parts_tile_every_block_and_are_those_that_a_plan_counts) {
  // Both larger and smaller than a bucket of 16 MiB.
  for (const std::int64_t layer_rows : {3, 40'000}) {
    const auto params = model_of(150'000, layer_rows, 2);
    const StoreLayout layout = layout_of(params, 2);
    Context context = cpu_context();
    const Ring ring(context, layout);
    const Buckets& buckets = ring.buckets;
    std::vector<std::pair<int, std::int64_t>> planned, taken;
    Buckets::for_each_part_of(
        layout, kOnCpu, [&](int block, Slice part) { planned.emplace_back(block, part.begin); });
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
  EXPECT_EQ(Buckets::bytes_of(layout, kOnCpu), 2 * 3 * 4 * 64 * 4);
  Buckets::Of rounded = kOnCpu;
  rounded.dtype = DType::kBF16;
  EXPECT_EQ(Buckets::bytes_of(layout, rounded), 2 * 3 * 4 * 64 * 2);
}

TEST(Buckets, on_a_gpu_a_layer_is_three_however_many_owners_or_fewer_where_pieces_are_small) {
  const auto params = model_of(150'000, 1'200'000, 2);  // layers of 307 MB
  const auto parts = [&](int owners) {
    std::vector<std::int64_t> counts(4), sizes;
    Buckets::for_each_part_of(layout_of(params, owners), kOnGpu, [&](int block, Slice part) {
      ++counts[static_cast<std::size_t>(block)];
      sizes.push_back(part.size * 4);
    });
    EXPECT_EQ(counts[1], counts[2]);
    EXPECT_EQ(counts[0], 1);  // the embedding, an eighth of a layer
    return counts[1];
  };
  EXPECT_EQ(parts(2), 3);
  EXPECT_EQ(parts(128), 3);
  EXPECT_EQ(parts(800), 2);   // 256 KiB of each: 210 MB
  EXPECT_EQ(parts(4000), 1);  // a layer has less than that for each
  // A third more than a layer, at most another.
  const std::int64_t layer = 1'200'000 * 64 * 4;
  EXPECT_LT(Buckets::bytes_of(layout_of(params, 128), kOnGpu), layer * 41 / 30);
  EXPECT_LE(Buckets::bytes_of(layout_of(params, 4000), kOnGpu), layer * 21 / 10);
}

TEST(Buckets, what_is_packed_is_unpacked_where_it_was) {
  const auto params = model_of(10, 7, 2);
  const StoreLayout layout = layout_of(params, 3);
  Context context = cpu_context();
  Ring ring(context, layout);
  Buckets& buckets = ring.buckets;
  const std::int64_t size = layout.local_block(1).size;
  Buffer local(DType::kF32, {size}, {}), back(DType::kF32, {size}, {});
  for (std::int64_t i = 0; i < size; ++i) local.view().as<float>()[i] = static_cast<float>(i);
  const Buckets::Bucket& bucket =
      buckets.take(1, {0, layout.shard_block(1, MeshView::kDense).size}, kNothing);
  buckets.pack(context, bucket, local.view());
  for (int owner = 0; owner < 3; ++owner) {
    const Slice rows = even_slice(7, 3, owner);
    EXPECT_EQ(bucket.shard_of(owner).as<float>()[0], static_cast<float>(64 * rows.begin));
    buckets.unpack(context, back.view(), bucket, owner);
  }
  for (std::int64_t i = 0; i < 7 * 64; ++i) EXPECT_EQ(back.view().as<float>()[i], i);
  back.view().as<float>()[5] = -1;
  buckets.unpack(context, back.view(), bucket);
  EXPECT_EQ(back.view().as<float>()[5], 5);
  back.view().as<float>()[64 * 3] = -1;  // the first of owner 1
  buckets.pack(context, bucket, back.view(), 1);
  EXPECT_EQ(bucket.shard_of(1).as<float>()[0], -1);
}

TEST(Buckets, pieces_of_owners_lie_side_by_side_and_rings_do_not_meet) {
  const auto params = model_of(10, 3, 2);
  const StoreLayout layout = layout_of(params, 3);
  Context context = cpu_context();
  Ring ring(context, layout);
  Buckets& buckets = ring.buckets;
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
  Context context = cpu_context();
  Ring ring(context, layout);
  Buckets& buckets = ring.buckets;
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
