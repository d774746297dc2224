#pragma once
// What kernels of a GPU ask of Context::scratch, from shapes alone: the kernels and the plan take
// it from here, so that memory is counted before it is taken, and none grows during a step (while a
// transfer spins on a GPU, to free memory is to wait for ever).

#include <algorithm>
#include <cstdint>

namespace trireme::gpu_scratch {

constexpr std::int64_t pieces(std::int64_t count, std::int64_t of_piece) {
  return (count + of_piece - 1) / of_piece;
}

/// How many pieces `rows` rows are cut into that are summed apart: `wanted`, more where a piece
/// would get so many rows that its f32 sum rounds much, none without a row.
constexpr std::int64_t pieces_of_rows(std::int64_t rows, std::int64_t wanted) {
  constexpr std::int64_t kRowsMax = 256;
  return std::min(std::max(wanted, pieces(rows, kRowsMax)), rows);
}

/// Two losses of each token: of a CPU too.
constexpr std::int64_t router_backward_bytes(std::int64_t tokens) {
  return 2 * tokens * std::int64_t{sizeof(float)};
}

/// Rows of each expert here in each tile of tokens, and where the expert's begin.
constexpr std::int64_t kExpertRowsTile = 128;
constexpr std::int64_t expert_rows_bytes(std::int64_t tokens, std::int64_t experts_here) {
  return experts_here * (pieces(tokens, kExpertRowsTile) + 1) * std::int64_t{sizeof(std::int32_t)};
}

/// Lists of a table's rows and of the tokens that look them up.
constexpr std::int64_t embedding_backward_bytes(std::int64_t tokens, std::int64_t rows) {
  return (2 * rows + 2 + 5 * tokens) * std::int64_t{sizeof(std::int32_t)};
}

/// Parts of a piece that are summed apart (column_pieces.cuh).
constexpr std::int64_t kPartsOfPiece = 4;

/// Blocks of the norm's backward pass that a multiprocessor holds with such a row's threads.
constexpr std::int64_t norm_backward_blocks(std::int64_t channels) {
  return channels <= 2048 ? 4 : channels <= 4096 ? 2 : 1;
}
/// dweight and dbias of pieces of rows: one for each block that an H200's 132 multiprocessors hold;
/// `rows_at_a_time` of a block.
constexpr std::int64_t norm_backward_pieces(std::int64_t tokens, std::int64_t channels,
                                            std::int64_t rows_at_a_time) {
  return pieces_of_rows(pieces(tokens, rows_at_a_time), 132 * norm_backward_blocks(channels));
}
constexpr std::int64_t norm_backward_floats(std::int64_t tokens, std::int64_t channels,
                                            std::int64_t rows_at_a_time = 1) {
  return 2 * kPartsOfPiece * norm_backward_pieces(tokens, channels, rows_at_a_time) * channels;
}

/// dweight of pieces of tokens, as many as such a GPU holds blocks at once. `groups` of tokens.
constexpr std::int64_t kRopeBlocks = 2;  ///< of a multiprocessor
constexpr std::int64_t kRopePieces = 132 * kRopeBlocks;
constexpr std::int64_t rope_backward_floats(std::int64_t groups, std::int64_t head_dim) {
  return kPartsOfPiece * pieces_of_rows(groups, kRopePieces) * head_dim;
}

/// Tokens of a piece of a sum of columns: enough pieces that pieces x groups of 256 columns fill a
/// large GPU, of a block's whole turns, at most 2048 for a running f32 sum.
constexpr std::int64_t column_sum_tokens(std::int64_t tokens, std::int64_t columns) {
  constexpr std::int64_t kBlocks = 1056, kColumns = 256, kLeast = 64, kMost = 2048;
  const std::int64_t wanted = pieces(kBlocks, pieces(columns, kColumns));
  return std::clamp(pieces(pieces(tokens, wanted), kLeast) * kLeast, kLeast, kMost);
}
constexpr std::int64_t column_sum_floats(std::int64_t tokens, std::int64_t columns) {
  return pieces(tokens, column_sum_tokens(tokens, columns)) * columns;
}

/// First keys of tiles of queries, for a mask by documents, at most: tiles of `tile` tokens, the
/// least that there are, of one range.
constexpr std::int64_t attention_backward_bytes(std::int64_t sequences, std::int64_t tokens,
                                                std::int64_t tile) {
  return sequences * 2 * pieces(tokens, tile) * std::int64_t{sizeof(std::int32_t)};
}

/// Turns of Hopper's backward kernel at the tiles of queries, and the number of blocks that have
/// begun; tiles as above.
constexpr std::int64_t attention_turns_bytes(std::int64_t sequences, std::int64_t heads,
                                             std::int64_t tokens, std::int64_t tile) {
  return (1 + sequences * heads * pieces(tokens, tile)) * std::int64_t{sizeof(std::int32_t)};
}

/// What a library's products use at most, on Hopper, and its alignment.
constexpr std::int64_t kProductWorkspaceBytes = std::int64_t{32} << 20;
constexpr std::int64_t kProductAlignment = 256;
/// Of the same memory, where blocks share the sums of tiles (gemm_split.h): the number of blocks
/// that have begun, and the turns of the two warpgroups at each of fewer than two tiles a block.
constexpr std::int64_t kSplitBlocksMax = 256;
constexpr std::int64_t kSplitTurnsBytes =
    (1 + 2 * 2 * kSplitBlocksMax) * std::int64_t{sizeof(std::int32_t)};
static_assert(kSplitTurnsBytes <= kProductWorkspaceBytes);
/// Beside that, of products in fp8: scales in places of their own and the sums of the parts of K
/// before they are rounded, or the scales of blocks in the library's order.
constexpr std::int64_t kFp8ProductBytes = (std::int64_t{32} << 20) + 512;

/// Whether a tile of 128 x 128 holds whole blocks of at most 128 different scales, in a row or a
/// column: then quantize, which finds the maxima itself, needs no memory for them.
constexpr bool quantizes_at_once(std::int64_t row_block, std::int64_t column_block) {
  return row_block != 0 && column_block != 0 && (row_block == 128 || column_block == 128);
}

/// Gradients of experts' weights whose segments wait for each other: blocks that take tiles in
/// turns, two for each of an H200's multiprocessors, keep some tiles of sums each.
constexpr std::int64_t kGroupedWeightsTile = 128 * 128, kGroupedWeightsBlocks = 264;
constexpr int grouped_weights_levels(std::int64_t sources) {
  int levels = 0;
  while (std::int64_t{1} << levels < sources) ++levels;
  return levels;
}
constexpr std::int64_t grouped_weights_blocks(std::int64_t tiles, std::int64_t sources) {
  return sources == 1 ? tiles : std::min(tiles, kGroupedWeightsBlocks);
}
constexpr std::int64_t grouped_weights_floats(std::int64_t sources) {
  return grouped_weights_levels(sources) * kGroupedWeightsBlocks * kGroupedWeightsTile;
}

}  // namespace trireme::gpu_scratch
