#include "checkpoint/staging.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>

#include "test_state.h"

namespace trireme {
namespace {

using std::chrono::milliseconds;

/// Everything that comes out, in order.
std::vector<std::byte> drain(Staging& staging, std::size_t shards) {
  std::vector<std::byte> bytes;
  for (std::size_t i = 0; i < shards; ++i) {
    const auto shard = staging.take();
    bytes.insert(bytes.end(), shard.begin(), shard.end());
    staging.release();
  }
  return bytes;
}

std::vector<std::byte> bytes_of(const State& state) {
  std::vector<std::byte> bytes;
  for (const StateTensor& tensor : state.tensors) {
    const auto size = static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype);
    bytes.insert(bytes.end(), tensor.data, tensor.data + size);
  }
  return bytes;
}

TEST(Staging, passes_on_every_byte_in_order_through_a_ring_of_any_size) {
  TestState tensors;
  add_odd_tensors(tensors);
  tensors.fill(1);
  const std::vector<std::byte> expected = bytes_of(tensors.state());
  for (const std::int64_t shard_bytes_max : {40, 500, 10000, 1 << 20}) {
    const std::vector<OwnShard> shards = own_shards(tensors.state(), shard_bytes_max);
    std::int64_t largest = 0;
    for (const OwnShard& shard : shards) largest = std::max(largest, shard.bytes);
    const std::int64_t all = staged_bytes(shards);
    for (const std::int64_t bytes : {largest + 63, 2 * largest + 64, all - 64, all}) {
      if (bytes < largest + 63) continue;
      Staging staging(bytes, nullptr);
      for (int save = 0; save < 2; ++save) {  // the same memory again
        staging.open(tensors.state(), shards);
        std::vector<std::byte> got;
        std::thread writer([&] { got = drain(staging, shards.size()); });
        while (!staging.stage(milliseconds(1000))) {
        }
        writer.join();
        EXPECT_EQ(got, expected) << shard_bytes_max << " in " << bytes;
      }
    }
  }
}

TEST(Staging, where_all_fits_nobody_waits_for_the_writer) {
  TestState tensors;
  add_odd_tensors(tensors);
  tensors.fill(1);
  const std::vector<std::byte> expected = bytes_of(tensors.state());
  const std::vector<OwnShard> shards = own_shards(tensors.state(), 1000);
  Staging staging(staged_bytes(shards), nullptr);
  staging.open(tensors.state(), shards);
  EXPECT_TRUE(staging.stage(milliseconds(0)));
  tensors.fill(2);
  EXPECT_EQ(drain(staging, shards.size()), expected);
}

TEST(Staging, a_full_ring_says_so_and_goes_on_when_there_is_room) {
  TestState tensors;
  tensors.add_whole("parameters/a", Shape{64});
  tensors.add_whole("parameters/b", Shape{64});
  const std::vector<OwnShard> shards = own_shards(tensors.state(), 1000);
  Staging staging(256, nullptr);
  staging.open(tensors.state(), shards);
  EXPECT_FALSE(staging.stage(milliseconds(0)));
  EXPECT_FALSE(staging.stage(milliseconds(0)));
  EXPECT_EQ(staging.take().size(), 256U);
  staging.release();
  EXPECT_TRUE(staging.stage(milliseconds(0)));
}

TEST(Staging, rows_inside_wider_ones_come_out_close) {
  // Columns 3 to 7 of ten, and a cut in the middle of a row.
  std::vector<float> wide(20 * 10);
  for (std::size_t i = 0; i < wide.size(); ++i) wide[i] = static_cast<float>(i);
  State state;
  StateTensor tensor;
  tensor.name = "parameters/columns";
  tensor.global_shape = Shape{20, 10};
  tensor.box = {Shape{0, 3}, Shape{20, 5}};
  tensor.data = reinterpret_cast<std::byte*>(wide.data() + 3);
  tensor.row_stride = 10;
  state.tensors.push_back(tensor);
  for (const std::int64_t shard_bytes_max : {8, 20, 60, 1000}) {
    const std::vector<OwnShard> shards = own_shards(state, shard_bytes_max);
    Staging staging(staged_bytes(shards), nullptr);
    staging.open(state, shards);
    ASSERT_TRUE(staging.stage(milliseconds(0)));
    const std::vector<std::byte> got = drain(staging, shards.size());
    ASSERT_EQ(got.size(), 20U * 5 * sizeof(float));
    std::vector<float> values(100);
    std::memcpy(values.data(), got.data(), got.size());
    for (std::size_t i = 0; i < values.size(); ++i)
      ASSERT_EQ(values[i], static_cast<float>(i / 5 * 10 + 3 + i % 5)) << shard_bytes_max;
  }
}

TEST(Staging, what_stays_is_handed_out_where_it_lies_and_the_rest_goes_through_the_ring) {
  TestState tensors;
  add_odd_tensors(tensors);
  tensors.fill(1);
  State& state = tensors.state();
  std::vector<float> wide(40 * 10, 3);
  StateTensor columns;
  columns.name = "parameters/columns";
  columns.global_shape = Shape{40, 10};
  columns.box = {Shape{0, 3}, Shape{40, 5}};
  columns.data = reinterpret_cast<std::byte*>(wide.data() + 3);
  columns.row_stride = 10;
  state.tensors.insert(state.tensors.begin() + 3, columns);
  for (const std::int64_t shard_bytes_max : {100, 1 << 20}) {
    const std::vector<OwnShard> shards = own_shards(state, shard_bytes_max);
    EXPECT_EQ(copied_bytes(state, shards, Meanwhile::kChange, nullptr), staged_bytes(shards));
    const std::int64_t bytes = copied_bytes(state, shards, Meanwhile::kStay, nullptr);
    EXPECT_LT(bytes, 40 * 5 * 4 + 20 * 64);
    Staging staging(bytes, nullptr);
    staging.open(state, shards, Meanwhile::kStay);
    EXPECT_TRUE(staging.stage(milliseconds(0)));
    for (const OwnShard& shard : shards) {
      const StateTensor& tensor = state.tensors[shard.tensor];
      const std::span<const std::byte> got = staging.take();
      ASSERT_EQ(static_cast<std::int64_t>(got.size()), shard.bytes);
      if (tensor.contiguous()) {
        EXPECT_EQ(got.data(), tensor.data + shard.begin_bytes) << tensor.name;
      } else {
        EXPECT_EQ(std::memcmp(got.data(), wide.data(), 4), 0);
      }
      staging.release();
    }
  }
  Staging nothing(0, nullptr);  // all of it lies close
  state.tensors.erase(state.tensors.begin() + 3);
  const std::vector<OwnShard> shards = own_shards(state, 1000);
  nothing.open(state, shards, Meanwhile::kStay);
  EXPECT_TRUE(nothing.stage(milliseconds(0)));
  EXPECT_EQ(drain(nothing, shards.size()), bytes_of(state));
}

TEST(Staging, cancelling_frees_both_sides) {
  TestState tensors;
  tensors.add_whole("parameters/a", Shape{64});
  tensors.add_whole("parameters/b", Shape{64});
  const std::vector<OwnShard> shards = own_shards(tensors.state(), 1000);
  Staging staging(256, nullptr);
  staging.open(tensors.state(), shards);
  std::thread writer([&] { EXPECT_THROW(drain(staging, 2), SaveCancelled); });
  staging.cancel();
  writer.join();
  EXPECT_TRUE(staging.stage(std::chrono::hours(1)));
  staging.open(tensors.state(), shards);
  EXPECT_FALSE(staging.stage(milliseconds(0))) << "a new save begins anew";
}

TEST(Staging, refuses_a_shard_that_never_fits) {
  TestState tensors;
  tensors.add_whole("parameters/a", Shape{65});
  Staging staging(256, nullptr);
  EXPECT_THROW(staging.open(tensors.state(), own_shards(tensors.state(), 1000)), InternalError);
}

TEST(OwnShards, no_copy_stages_more_than_the_plan_says_and_one_stages_as_much) {
  for (const int copies : {1, 2, 3, 8}) {
    std::int64_t most = 0;
    for (int copy = copies; copy-- > 0;) {
      TestState tensors;
      for (int i = 0; i < 20; ++i) {
        const Shape shape{i + 1, 7};
        tensors.add(
            {fmt::format("parameters/{}", i), DType::kF32, shape, whole(shape), copy, copies});
      }
      const Shape large{1000, 300};
      tensors.add({"parameters/large", DType::kF32, large, whole(large), copy, copies});
      most = std::max(most, staged_bytes(own_shards(tensors.state(), kShardBytesMax)));
      EXPECT_GE(staged_bytes_max(tensors.state()),
                staged_bytes(own_shards(tensors.state(), kShardBytesMax)));
      if (copy > 0) continue;
      EXPECT_NEAR(static_cast<double>(staged_bytes_max(tensors.state())), static_cast<double>(most),
                  1300 * 4.0);
    }
  }
}

}  // namespace
}  // namespace trireme
