#pragma once
// Sums over k that blocks share, where tiles would leave the last turn of a GPU's multiprocessors
// partly filled ("stream-K": Osama et al., arXiv 2301.03598). Plain arithmetic of hosts and
// devices.
//
// Blocks take whole tiles in turn; those that are left, between one and two for each block, or all
// where there are fewer than blocks, lie behind each other and are cut into equal ranges of steps
// along k, one a block. What a block has of a tile is a piece; pieces of a tile are added to the
// result in the order of their steps, by the blocks that have them. A block goes through its range
// from the end: so it begins where a tile begins, waits for nobody, and ends with what other blocks
// began to add to at their start. It waits for blocks of lower numbers alone.

#include <algorithm>
#include <cstdint>

#include "kernels/common/gpu_scratch.h"
#include "kernels/common/host_device.h"

namespace trireme::cuda {

/// Steps of a tile that a block adds up at a time.
struct TilePiece {
  int tile, first, steps;
  int before;  ///< pieces of the tile that are added before it; -1: it is all of the tile
};

struct SplitTiles {
  /// Of a range: with fewer a block's sums would take longer to leave than to be added up.
  static constexpr int kStepsLeast = 16;
  /// A block has fewer: where a tile is a small part of its work, little is gained.
  static constexpr int kPiecesMost = 16;
  int tiles = 0, whole = 0;  ///< all; those taken in turn
  int steps = 0;             ///< of a tile
  int blocks = 0;

  SplitTiles() = default;
  SplitTiles(std::int64_t tiles_, std::int64_t steps_, std::int64_t blocks_most) {
    tiles = static_cast<int>(tiles_);
    steps = static_cast<int>(steps_);
    const std::int64_t few = std::max(tiles_ * steps_ / kStepsLeast, tiles_);
    blocks = static_cast<int>(std::min(few, blocks_most));
    if (tiles >= blocks) whole = (tiles / blocks - (tiles % blocks == 0 ? 0 : 1)) * blocks;
  }
  /// Whether any tile is cut: by few enough blocks for the counts of turns, in few enough pieces,
  /// and of few enough steps for an int.
  [[nodiscard]] bool cuts() const {
    const int pieces = whole / blocks + 3;  // a range touches three tiles at most
    return blocks <= gpu_scratch::kSplitBlocksMax && shared() % blocks != 0 && steps > 1 &&
           pieces < kPiecesMost && std::int64_t{steps} * shared() * (blocks + 1) < INT32_MAX;
  }
  TRIREME_HOST_DEVICE int shared() const { return tiles - whole; }
  /// Of the steps of all shared tiles, one behind the other: where a block's begin; whose one is.
  TRIREME_HOST_DEVICE int begin_of(int block) const { return block * shared() * steps / blocks; }
  TRIREME_HOST_DEVICE int block_of(int step) const {
    return ((step + 1) * blocks - 1) / (shared() * steps);
  }
  /// A block's piece of that number, counted from 0; false: it has no more.
  TRIREME_HOST_DEVICE bool find(int block, int number, TilePiece& piece) const {
    const int in_turn = whole / blocks;
    if (number < in_turn) {
      piece = {number * blocks + block, 0, steps, -1};
      return true;
    }
    const int begin = begin_of(block), end = begin_of(block + 1);
    const int tile = (end - 1) / steps - (number - in_turn);
    const int tile_begin = tile * steps, tile_end = tile_begin + steps;
    if (end <= begin || tile_end <= begin) return false;
    const int first = begin < tile_begin ? tile_begin : begin,
              count = (end < tile_end ? end : tile_end) - first;
    piece = {whole + tile, first - tile_begin, count,
             count == steps ? -1 : block - block_of(tile_begin)};
    return true;
  }
};

}  // namespace trireme::cuda
