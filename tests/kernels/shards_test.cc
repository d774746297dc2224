#include "kernels/shards/shards.h"

#include <algorithm>
#include <cstring>

#include "kernels/support/op_test.h"

namespace trireme {
namespace {

class Shards : public OpTest {};
TRIREME_FOR_ALL_ISAS(Shards);

/// A block of three tensors: [7, 5] cut by rows, [4, 8] that owner 1 has whole, [2, 3] cut by rows.
/// Between them, in both layouts, places that belong to nobody.
constexpr std::int64_t kLocal = 100, kShard = 70;
std::vector<ShardedTensor> tensors() {
  return {{0, 0, 7, 5, -1}, {48, 16, 4, 8, 1}, {80, 48, 2, 3, -1}};
}
ShardTable table_of(Context& context, const std::vector<ShardedTensor>& tensors, int owners) {
  return {reinterpret_cast<const ShardedTensor*>(
              context.device_constant(std::as_bytes(std::span(tensors)))),
          static_cast<int>(tensors.size()), owners};
}

/// The place of each element of owner `owner`'s shard in the block, -1 where there is none: rows of
/// even_slice, one after another.
std::vector<std::int64_t> places(int owners, int owner) {
  std::vector<std::int64_t> places(kShard, -1);
  for (const ShardedTensor& tensor : tensors()) {
    const Slice rows = tensor.owner < 0 ? even_slice(tensor.rows, owners, owner)
                                        : Slice{0, tensor.owner == owner ? tensor.rows : 0};
    for (std::int64_t i = 0; i < rows.size * tensor.row_elements; ++i)
      places[static_cast<std::size_t>(tensor.shard + i)] =
          tensor.local + rows.begin * tensor.row_elements + i;
  }
  return places;
}

TEST_P(Shards, by_hand) {
  Context context = test_context(GetParam());
  // Rows of 2, three of them to two owners: (1 2)(3 4) and (5 6).
  const std::vector<ShardedTensor> one = {{1, 0, 3, 2, -1}};
  const TestTensor local = TestTensor::of(DType::kF32, {8}, {0, 1, 2, 3, 4, 5, 6, 7});
  TestTensor shards = TestTensor::of(DType::kF32, {2, 4}, {9, 9, 9, 9, 9, 9, 9, 9});
  pack_shards(context, shards, local, {table_of(context, one, 2), {0, 4}, 0});
  EXPECT_EQ(shards.values(), (std::vector<double>{1, 2, 3, 4, 5, 6, 9, 9}));
  TestTensor back = TestTensor::of(DType::kF32, {8}, {-1, -1, -1, -1, -1, -1, -1, -1});
  unpack_shards(context, back, shards, {table_of(context, one, 2), {0, 4}, 0});
  EXPECT_EQ(back.values(), (std::vector<double>{-1, 1, 2, 3, 4, 5, 6, -1}));
}

/// Random numbers, or codes of all kinds.
TestTensor values_of(DType type, const Shape& shape, std::uint64_t seed) {
  if (!is_fp8(type)) return TestTensor::random(type, shape, seed);
  TestTensor values(type, shape);
  for (std::int64_t i = 0; i < shape.count(); ++i)
    values.set(i, static_cast<double>((static_cast<std::uint64_t>(i) * 37 + seed * 101) % 256));
  return values;
}

TEST_P(Shards, every_part_of_every_owner_in_all_types) {
  for (const DType type : {DType::kF32, DType::kBF16, DType::kF8E4M3, DType::kF8E5M2}) {
    for (const int owners : {1, 2, 3, 9}) {
      for (const Slice part : {Slice{0, kShard}, Slice{16, 32}, Slice{3, 41}}) {
        for (const int threads : {1, 3}) {
          Context context = test_context(GetParam(), threads);
          const ShardTable table = table_of(context, tensors(), owners);
          const TestTensor local = values_of(type, {kLocal}, 1);
          const TestTensor before = values_of(type, {owners, part.size}, 2);
          TestTensor shards = before, restored = values_of(type, {kLocal}, 3);
          pack_shards(context, shards, local, {table, part, 0});
          std::vector<double> packed = before.values(), unpacked = restored.values();
          const std::vector<double> whole = local.values();
          for (int owner = 0; owner < owners; ++owner) {
            const std::vector<std::int64_t> place = places(owners, owner);
            for (std::int64_t i = 0; i < part.size; ++i) {
              const std::int64_t at = place[static_cast<std::size_t>(part.begin + i)];
              if (at < 0) continue;
              packed[static_cast<std::size_t>(owner * part.size + i)] =
                  unpacked[static_cast<std::size_t>(at)] = whole[static_cast<std::size_t>(at)];
            }
          }
          ASSERT_EQ(shards.values(), packed) << owners << " owners from " << part.begin;
          unpack_shards(context, restored, shards, {table, part, 0});
          ASSERT_EQ(restored.values(), unpacked) << owners << " owners from " << part.begin;
        }
      }
    }
  }
}

/// Packed and unpacked again: long enough for several tiles and threads, with rows that vectors fit
/// and that they do not. What stands in front of the tensor stays.
void expect_there_and_back(Isa isa, DType shards_type, DType local_type) {
  for (const std::int64_t row : {64, 33, 1}) {
    Context context = test_context(isa, 2);
    const std::int64_t rows = 30'001 / row, size = rows * row;
    const int owners = 3;
    const std::int64_t shard = even_slice(rows, owners, 0).size * row;
    const ShardTable table = table_of(context, {{16, 0, rows, row, -1}}, owners);
    const TestTensor local = TestTensor::random(local_type, {16 + size}, 1);
    TestTensor shards(shards_type, {owners, shard}), back(local_type, {16 + size});
    pack_shards(context, shards, local, {table, {0, shard}, 0});
    unpack_shards(context, back, shards, {table, {0, shard}, 0});
    std::vector<double> expected = local.values();
    std::fill_n(expected.begin(), 16, 0);
    if (shards_type != local_type) {
      for (double& value : expected) value = to_float(to_bfloat16(static_cast<float>(value)));
    }
    EXPECT_EQ(back.values(), expected) << "rows of " << row;
  }
}

TEST_P(Shards, there_and_back_is_what_was_there) {
  expect_there_and_back(GetParam(), DType::kBF16, DType::kBF16);
}

TEST_P(Shards, bf16_shards_of_an_f32_block_are_rounded) {
  expect_there_and_back(GetParam(), DType::kBF16, DType::kF32);
}

TEST_P(Shards, of_one_owner) {
  Context context = test_context(GetParam());
  const ShardTable table = table_of(context, tensors(), 3);
  const TestTensor local = TestTensor::random(DType::kF32, {kLocal}, 1);
  TestTensor all = TestTensor::random(DType::kF32, {3, kShard}, 2), one(DType::kF32, {1, kShard});
  for (int owner = 0; owner < 3; ++owner) {
    std::memcpy(one.view().data, all.view().data + owner * kShard * 4, one.view().bytes());
    pack_shards(context, one, local, {table, {0, kShard}, owner});
    TestTensor expected = all;
    pack_shards(context, expected, local, {table, {0, kShard}, 0});
    test_device::synchronize();
    EXPECT_EQ(
        std::memcmp(one.view().data, expected.view().data + owner * kShard * 4, one.view().bytes()),
        0);
  }
}

TEST_P(Shards, the_same_bits_in_every_order) {
  expect_same_bits([&] {
    Context context = test_context(GetParam());
    const TestTensor local = TestTensor::random(DType::kF32, {kLocal}, 1);
    TestTensor shards = TestTensor::random(DType::kF32, {2, kShard}, 2);
    pack_shards(context, shards, local, {table_of(context, tensors(), 2), {0, kShard}, 0});
    return shards.bits();
  });
}

TEST_P(Shards, refused) {
  Context context = test_context(GetParam());
  const ShardTable table = table_of(context, tensors(), 2);
  TestTensor local(DType::kF32, {kLocal}), shards(DType::kF32, {2, kShard});
  EXPECT_THROW(pack_shards(context, shards, local, {table, {0, kShard - 1}, 0}), InternalError);
  EXPECT_THROW(pack_shards(context, shards, local, {table, {0, kShard}, 1}), InternalError);
  const TestTensor half(DType::kBF16, {kLocal});
  EXPECT_THROW(pack_shards(context, shards, half, {table, {0, kShard}, 0}), InternalError);
  const TestTensor other(DType::kF64, {2, kShard});
  EXPECT_THROW(unpack_shards(context, local, other, {table, {0, kShard}, 0}), InternalError);
}

}  // namespace
}  // namespace trireme
