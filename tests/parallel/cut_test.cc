#include "parallel/cut.h"

#include <gtest/gtest.h>

#include <random>

namespace trireme {
namespace {

TensorCut cut_of(int dim, std::vector<CutSegment> segments) {
  TensorCut cut;
  cut.dim = dim;
  cut.segments = std::move(segments);
  return cut;
}

TEST(Cut, units_stay_whole_and_the_first_ranks_take_the_rest) {
  const TensorCut cut = cut_of(0, {{7, 7}});
  EXPECT_EQ(local_shape({7, 3}, cut, {3, 0}), (Shape{3, 3}));
  EXPECT_EQ(local_shape({7, 3}, cut, {3, 2}), (Shape{2, 3}));
  const auto parts = local_parts({7, 3}, cut, {3, 1});
  ASSERT_EQ(parts.size(), 1U);
  EXPECT_EQ(parts[0].box, (Box{{3, 0}, {2, 3}}));
  EXPECT_EQ(parts[0].at, (Shape{0, 0}));
  // Heads of four rows.
  EXPECT_EQ(local_shape({12, 3}, cut_of(0, {{12, 3}}), {3, 1}), (Shape{4, 3}));
}

TEST(Cut, segments_of_a_matrix_are_dealt_out_each_by_itself) {
  // q of 4 heads, k and v of 2, two columns a head.
  const TensorCut cut = cut_of(1, {{8, 4}, {4, 2}, {4, 2}});
  const auto parts = local_parts({5, 16}, cut, {2, 1});
  ASSERT_EQ(parts.size(), 3U);
  EXPECT_EQ(parts[0].box, (Box{{0, 4}, {5, 4}}));
  EXPECT_EQ(parts[1].box, (Box{{0, 10}, {5, 2}}));
  EXPECT_EQ(parts[2].box, (Box{{0, 14}, {5, 2}}));
  EXPECT_EQ(parts[1].at, (Shape{0, 4}));
  EXPECT_EQ(parts[2].at, (Shape{0, 6}));
  EXPECT_EQ(local_shape({5, 16}, cut, {2, 1}), (Shape{5, 8}));
}

TEST(Cut, units_fewer_than_ranks_are_held_by_neighbours) {
  const TensorCut cut = cut_of(0, {{6, 2}});
  EXPECT_EQ(cut.replicas(4), 2);
  for (int rank = 0; rank < 4; ++rank) {
    const auto parts = local_parts({6, 5}, cut, {4, rank});
    ASSERT_EQ(parts.size(), 1U);
    EXPECT_EQ(parts[0].box, (Box{{rank < 2 ? 0 : 3, 0}, {3, 5}}));
  }
  EXPECT_EQ(TensorCut{}.replicas(4), 4);
  EXPECT_EQ(cut_of(0, {{6, 6}}).replicas(4), 1);
}

TEST(Cut, what_cannot_be_sharded_is_refused) {
  EXPECT_THROW((void)cut_of(0, {{6, 2}}).replicas(3), InternalError);
  EXPECT_THROW((void)cut_of(0, {{8, 4}, {4, 2}}).replicas(4), InternalError);
  EXPECT_THROW((void)local_parts({7, 2}, cut_of(0, {{6, 2}}), {2, 0}), InternalError);
  EXPECT_THROW((void)local_shape({7, 2}, cut_of(0, {{7, 2}}), {2, 0}), InternalError);
}

TEST(Cut, rows_of_parts_count_from_their_first_row) {
  // Two parts below each other: local rows 0..3 and 4..5.
  const auto parts = local_parts({12, 2}, cut_of(0, {{8, 4}, {4, 2}}), {2, 1});
  const auto rows = rows_of_parts(parts, {3, 2});
  ASSERT_EQ(rows.size(), 2U);
  EXPECT_EQ(rows[0].box, (Box{{7, 0}, {1, 2}}));
  EXPECT_EQ(rows[0].at, (Shape{0, 0}));
  EXPECT_EQ(rows[1].box, (Box{{10, 0}, {1, 2}}));
  EXPECT_EQ(rows[1].at, (Shape{1, 0}));
  EXPECT_TRUE(rows_of_parts(parts, {2, 0}).empty());
}

/// A shard spec that some parameter might have, and the extents of both axes.
struct Drawn {
  Shape shape;
  TensorCut cut;
  int ranks = 1, shards = 1;

  explicit Drawn(std::mt19937& random) {
    const auto between = [&](int from, int to) {
      return std::uniform_int_distribution<int>(from, to)(random);
    };
    ranks = between(1, 9);
    shards = between(1, 9);
    const bool matrix = between(0, 3) > 0;
    shape = matrix ? Shape{between(1, 12), between(1, 12)} : Shape{between(1, 40)};
    if (between(0, 4) == 0) return;
    cut.dim = matrix ? between(0, 1) : 0;
    // Fewer units than ranks in every segment, or in none.
    std::vector<int> divisors;
    for (int i = 1; i < ranks; ++i) {
      if (ranks % i == 0) divisors.push_back(i);
    }
    const bool few = !divisors.empty() && between(0, 1) == 0;
    const int units =
        few ? divisors[static_cast<std::size_t>(between(0, static_cast<int>(divisors.size()) - 1))]
            : 0;
    std::int64_t size = 0;
    for (int segments = between(1, 3); segments > 0; --segments) {
      const int own = few ? units : ranks + between(0, 5);
      cut.segments.push_back({std::int64_t{own} * between(1, 3), own});
      size += cut.segments.back().size;
    }
    shape.set(cut.dim, size);
  }
};

/// Calls f(global, local) with the row-major index of every element of a part.
template <class F>
void for_each_element(const CutPart& part, const Shape& global, const Shape& local, const F& f) {
  const bool matrix = global.rank() == 2;
  const std::int64_t columns = matrix ? part.box.shape[1] : 1;
  for (std::int64_t row = 0; row < part.box.shape[0]; ++row) {
    for (std::int64_t column = 0; column < columns; ++column) {
      const auto at = [&](const Shape& origin, const Shape& shape) {
        return matrix ? (origin[0] + row) * shape[1] + origin[1] + column : origin[0] + row;
      };
      f(at(part.box.offset, global), at(part.at, local));
    }
  }
}

TEST(Cut, every_element_is_owned_as_often_as_it_has_replicas) {
  std::mt19937 random(6);
  for (int i = 0; i < 500; ++i) {
    const Drawn drawn(random);
    std::vector<int> owners(static_cast<std::size_t>(drawn.shape.count()));
    for (int rank = 0; rank < drawn.ranks; ++rank) {
      const AxisRank tensor{drawn.ranks, rank};
      const Shape local = local_shape(drawn.shape, drawn.cut, tensor);
      const auto parts = local_parts(drawn.shape, drawn.cut, tensor);
      std::int64_t rows_before = 0;
      for (int shard = 0; shard < drawn.shards; ++shard) {
        const Slice rows = owned_rows(local, {drawn.shards, shard});
        ASSERT_EQ(rows.begin, rows_before);
        rows_before += rows.size;
        Shape owned = local;
        owned.set(0, rows.size);
        std::vector<int> filled(static_cast<std::size_t>(owned.count()));
        for (const CutPart& part : rows_of_parts(parts, rows)) {
          for_each_element(part, drawn.shape, owned, [&](std::int64_t global, std::int64_t at) {
            ++owners.at(static_cast<std::size_t>(global));
            ++filled.at(static_cast<std::size_t>(at));
          });
        }
        ASSERT_EQ(filled, std::vector<int>(filled.size(), 1)) << "case " << i;
      }
      ASSERT_EQ(rows_before, local[0]);
    }
    ASSERT_EQ(owners, std::vector<int>(owners.size(), drawn.cut.replicas(drawn.ranks)))
        << "case " << i;
  }
}

/// Of each rank's part, by the tensor axis and then by ZeRO; -1 where no block is cut.
std::vector<std::int64_t> cuts_of(const Shape& global, const TensorCut& cut, int tensor, int shards,
                                  std::int64_t block) {
  std::vector<std::int64_t> cuts;
  for (int t = 0; t < tensor; ++t) {
    const Shape local = local_shape(global, cut, {tensor, t});
    for (int s = 0; s < shards; ++s) {
      for (const CutPart& part :
           rows_of_parts(local_parts(global, cut, {tensor, t}), owned_rows(local, {shards, s})))
        cuts.push_back(cut_within_block(global, part.box, block).value_or(-1));
    }
  }
  return cuts;
}

TEST(Cut, blocks_of_the_global_order_are_cut_or_not) {
  using Cuts = std::vector<std::int64_t>;
  const TensorCut none, rows = cut_of(0, {{6, 6}}), columns = cut_of(1, {{256, 256}});
  // Rows of whole blocks: any rows.
  EXPECT_EQ(cuts_of({6, 128}, rows, 3, 2, 64), (Cuts{-1, -1, -1, -1, -1, -1}));
  EXPECT_EQ(cuts_of({5, 64}, none, 1, 4, 64), (Cuts{-1, -1, -1, -1}));
  // Rows of a block and a half: an even number of them, or the last.
  EXPECT_EQ(cuts_of({6, 96}, none, 1, 3, 64), (Cuts{-1, -1, -1}));
  EXPECT_EQ(cuts_of({6, 96}, rows, 2, 1, 64), (Cuts{288, 288}));
  EXPECT_EQ(cuts_of({5, 96}, none, 1, 1, 64), (Cuts{-1}));
  EXPECT_EQ(cuts_of({5, 96}, none, 1, 2, 64), (Cuts{288, 288}));
  // Columns of each row.
  EXPECT_EQ(cuts_of({3, 256}, columns, 4, 1, 64), (Cuts{-1, -1, -1, -1}));
  EXPECT_EQ(cuts_of({3, 256}, columns, 8, 1, 64), (Cuts{32, 32, 96, 96, 160, 160, 224, 224}));
  // The first row's cut is between blocks, the second row begins within one.
  EXPECT_EQ(cuts_of({2, 160}, cut_of(1, {{160, 5}}), 5, 1, 64), (Cuts{32, 32, 96, 96, 160}));
  // A vector.
  EXPECT_EQ(cuts_of({192}, none, 1, 3, 64), (Cuts{-1, -1, -1}));
  EXPECT_EQ(cuts_of({100}, none, 1, 1, 64), (Cuts{-1}));
  EXPECT_EQ(cuts_of({100}, none, 1, 2, 64), (Cuts{50, 50}));
}

}  // namespace
}  // namespace trireme
