// How blocks share sums over k: plain arithmetic, of every size.
#include "kernels/gemm/gemm_split.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace trireme::cuda {
namespace {

struct Taken {
  TilePiece piece;
  int block;
};

std::vector<Taken> pieces_of(const SplitTiles& split) {
  std::vector<Taken> taken;
  for (int block = 0; block < split.blocks; ++block) {
    TilePiece piece{};
    for (int i = 0; split.find(block, i, piece); ++i) taken.push_back({piece, block});
  }
  return taken;
}

/// f(split, its sizes in words), of few and many tiles, steps and multiprocessors.
template <class F>
void for_each_split(F f) {
  for (const int blocks : {1, 2, 3, 7, 132})
    for (const int tiles : {1, 2, 3, 5, 13, 18, 91, 131, 132, 133, 144, 263, 264, 265, 350})
      for (const int steps : {1, 2, 5, 16, 47, 128})
        f(SplitTiles(tiles, steps, blocks), std::to_string(tiles) + " tiles of " +
                                                std::to_string(steps) + " steps, " +
                                                std::to_string(blocks) + " multiprocessors");
}

TEST(SplitTiles, each_step_of_each_tile_is_taken_once_and_pieces_are_added_in_their_order) {
  for_each_split([](const SplitTiles& split, const std::string& sizes) {
    std::map<int, std::vector<Taken>> of_tiles;
    for (const Taken& taken : pieces_of(split)) of_tiles[taken.piece.tile].push_back(taken);
    ASSERT_EQ(static_cast<int>(of_tiles.size()), split.tiles) << sizes;
    for (auto& [tile, pieces] : of_tiles) {
      std::sort(pieces.begin(), pieces.end(),
                [](const Taken& a, const Taken& b) { return a.piece.first < b.piece.first; });
      int next = 0, before = 0;
      for (const auto& [piece, block] : pieces) {
        ASSERT_EQ(piece.first, next) << sizes << ", tile " << tile;
        ASSERT_GT(piece.steps, 0) << sizes << ", tile " << tile;
        ASSERT_EQ(piece.before, pieces.size() == 1 ? -1 : before++) << sizes << ", tile " << tile;
        next += piece.steps;
      }
      ASSERT_EQ(next, split.steps) << sizes << ", tile " << tile;
    }
  });
}

/// Blocks that have not begun may not have room before others end.
TEST(SplitTiles,
     a_block_waits_for_blocks_before_it_and_keeps_none_of_them_from_what_it_adds_first) {
  for_each_split([](const SplitTiles& split, const std::string& sizes) {
    std::map<std::pair<int, int>, int> block_of;  // of a tile's piece of that number
    std::set<int> begun;
    for (const auto& [piece, block] : pieces_of(split)) {
      if (piece.before < 0) continue;
      block_of[{piece.tile, piece.before}] = block;
      // What others wait for comes first of all that is shared.
      const bool alone = split.shared() >= split.blocks;
      if (alone && begun.insert(block).second && piece.first + piece.steps < split.steps) {
        ASSERT_EQ(piece.before, 0) << sizes << ", block " << block;
      }
    }
    for (const auto& [at, block] : block_of) {
      if (at.second == 0) continue;
      const auto earlier = block_of.find({at.first, at.second - 1});
      ASSERT_NE(earlier, block_of.end()) << sizes;
      ASSERT_LT(earlier->second, block) << sizes;
    }
  });
}

TEST(SplitTiles, blocks_take_equal_shares_of_what_would_not_fill_a_turn) {
  for_each_split([](const SplitTiles& split, const std::string& sizes) {
    std::vector<int> steps(static_cast<std::size_t>(split.blocks));
    for (const auto& [piece, block] : pieces_of(split))
      steps[static_cast<std::size_t>(block)] += piece.steps;
    const auto [least, most] = std::minmax_element(steps.begin(), steps.end());
    ASSERT_LE(*most - *least, 1) << sizes;
    std::map<int, int> pieces;
    for (const Taken& taken : pieces_of(split)) ++pieces[taken.block];
    for (const auto& [block, count] : pieces)
      ASSERT_LE(count, split.whole / split.blocks + 3) << sizes << ", block " << block;
    ASSERT_LT(split.shared(), 2 * split.blocks) << sizes << ": turns have no more counts";
    ASSERT_GE(*least, std::min(split.steps, SplitTiles::kStepsLeast)) << sizes;
  });
}

TEST(SplitTiles, what_fills_whole_turns_is_not_cut) {
  for (const int tiles : {132, 264, 1320}) EXPECT_FALSE(SplitTiles(tiles, 128, 132).cuts());
  EXPECT_FALSE(SplitTiles(40, 16, 132).cuts()) << "too few steps to share";
  EXPECT_FALSE(SplitTiles(40, 128, 1).cuts()) << "nobody to share with";
  EXPECT_TRUE(SplitTiles(40, 128, 132).cuts());
  EXPECT_FALSE(SplitTiles(133, 1, 132).cuts()) << "no more to share than tiles";
  EXPECT_TRUE(SplitTiles(133, 2, 132).cuts());
  EXPECT_TRUE(SplitTiles(256, 128, gpu_scratch::kSplitBlocksMax - 1).cuts());
  EXPECT_FALSE(SplitTiles(300, 128, gpu_scratch::kSplitBlocksMax + 1).cuts()) << "too many counts";
  EXPECT_TRUE(SplitTiles(132 * 14 - 1, 128, 132).cuts());
  EXPECT_FALSE(SplitTiles(132 * 14 + 1, 128, 132).cuts()) << "too many tiles a block";
  EXPECT_TRUE(SplitTiles(133, 60'000, 132).cuts());
  EXPECT_FALSE(SplitTiles(200, 120'000, 132).cuts()) << "steps beyond an int";
}

}  // namespace
}  // namespace trireme::cuda
