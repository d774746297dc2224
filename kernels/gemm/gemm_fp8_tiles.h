#pragma once
// Which scale belongs to a row of a quantised operand, and how columns of a result are cut into
// tiles of which each has one. Plain arithmetic of hosts and devices.

#include "kernels/common/host_device.h"
#include "kernels/gemm/gemm_quantized_gpu_table.h"

namespace trireme::cuda {

/// The blocks of a dim's indices that share a scale.
struct ScaleBlocks {
  static constexpr int kPartsMax = ScalesGpu::kPartsMax;
  int parts = 0;
  int begin[kPartsMax + 1] = {};  ///< of each part, and the end of the last
  int phase[kPartsMax] = {};      ///< of a part's first index in its first block
  int first[kPartsMax] = {};      ///< a part's first block
  int block = 0;                  ///< indices; 0: all of a part

  ScaleBlocks() = default;
  explicit ScaleBlocks(const ScalesGpu& of) : block(static_cast<int>(of.row_block)) {
    int index = 0, blocks = 0;
    for (int part = 0; part < of.parts; ++part) {
      const int size = static_cast<int>(of.sizes[part]);
      begin[part] = index;
      phase[part] = block == 0 ? 0 : static_cast<int>(of.offsets[part] % block);
      first[part] = blocks;
      blocks += block == 0 ? 1 : (phase[part] + size + block - 1) / block;
      index += size;
    }
    parts = of.parts;
    begin[parts] = index;
  }

  TRIREME_HOST_DEVICE int block_of(int i) const {
    int part = 0;
    while (part + 1 < parts && i >= begin[part + 1]) ++part;
    return block == 0 ? first[part] : first[part] + (phase[part] + i - begin[part]) / block;
  }
};

/// A tile's columns in the result, and the scale that they share (of the first, where each has its
/// own); of a dual tile also that of the second product's columns.
struct ColumnTile {
  int begin, end, block, second_block;
};

/// Tiles of at most kWidth columns, none across parts. Where blocks have kWidth columns each tile
/// is one, so that a part which begins inside a block begins with a narrower tile. Dual: the two
/// parts are two products beside each other, and a tile is half as many columns of both.
struct ColumnTiles {
  static constexpr int kWidth = 128, kPartsMax = ScaleBlocks::kPartsMax;
  ScaleBlocks blocks;
  bool dual = false;
  int first[kPartsMax + 1] = {};  ///< a part's first tile, and the number of all

  ColumnTiles() = default;
  ColumnTiles(const ScalesGpu& of, bool dual_) : blocks(of), dual(dual_) {
    for (int part = 0; part < parts(); ++part) {
      const int size = blocks.begin[part + 1] - blocks.begin[part];
      first[part + 1] = first[part] + (phase(part) + size + width() - 1) / width();
    }
  }
  TRIREME_HOST_DEVICE int count() const { return first[parts()]; }
  TRIREME_HOST_DEVICE ColumnTile at(int tile) const {
    int part = 0;
    while (tile >= first[part + 1]) ++part;
    const int begin = blocks.begin[part], end = blocks.begin[part + 1];
    const int from = begin - phase(part) + (tile - first[part]) * width(), to = from + width();
    const int column = from < begin ? begin : from;
    return {column, to < end ? to : end, blocks.block_of(column),
            blocks.block_of(dual ? column + blocks.begin[1] : column)};
  }
  /// Whether all tiles begin and end at even columns.
  [[nodiscard]] bool even() const {
    for (int part = 0; part < blocks.parts; ++part)
      if (blocks.begin[part + 1] % 2 != 0 || phase(part) % 2 != 0) return false;
    return true;
  }
  /// Whether two products of these columns can share tiles: operands move by eight of each.
  static bool can_be_dual(const ScalesGpu& of) {
    const bool two = of.parts == 2 && of.sizes[0] == of.sizes[1] && of.sizes[0] % 8 == 0;
    if (!two || of.row_block == 0) return two;
    return of.row_block == kWidth && of.offsets[0] % kWidth == of.offsets[1] % kWidth &&
           of.offsets[0] % 8 == 0;
  }

 private:
  TRIREME_HOST_DEVICE int width() const { return dual ? kWidth / 2 : kWidth; }
  TRIREME_HOST_DEVICE int parts() const { return dual ? 1 : blocks.parts; }
  TRIREME_HOST_DEVICE int phase(int part) const {
    return blocks.block == kWidth ? blocks.phase[part] % width() : 0;
  }
};

/// The column of scales for a block of 128 of k.
struct ScaleColumns {
  bool each_block = false;
  int parts = 1;
  int ends[ScalesGpu::kPartsMax] = {};  ///< of parts, in blocks

  TRIREME_HOST_DEVICE int of_block(int k_block) const {
    if (each_block) return k_block;
    int part = 0;
    while (part + 1 < parts && k_block >= ends[part]) ++part;
    return part;
  }
};

}  // namespace trireme::cuda
