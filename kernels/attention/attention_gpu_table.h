#pragma once
// Parameters of the GPU's attention kernels: plain data, pointers to device memory.

#include "kernels/attention/attention_table.h"
#include "kernels/quantize/quantize_table.h"

namespace trireme {

/// Tokens [index, index + count) of a sequence stand at positions first, first + 1, ...
struct AttentionRange {
  std::int32_t first, count, index;
};

/// The ranges of one side, empty ones left out and neighbours joined. A few are passed in the
/// argument itself (a key/value cache has other ranges at each call), more are in device memory.
struct AttentionRanges {
  static constexpr int kFew = 16;
  std::int32_t count = 0;
  AttentionRange few[kFew] = {};
  const AttentionRange* table = nullptr;    ///< null: `few` holds them
  const AttentionRange* on_host = nullptr;  ///< all of them, for the launch
};

/// No kernel cuts a range into tiles smaller than this.
inline constexpr std::int64_t kAttentionGpuTileMin = 16;

/// Hopper's backward kernels cut no range of queries into tiles smaller than this.
inline constexpr std::int64_t kAttentionTurnTileMin = 64;

struct AttentionGpuForward {
  Exec exec;
  AttentionShape shape;
  AttentionRanges q_ranges, kv_ranges;
  const std::int32_t* first_key;  ///< [B * Tq], or null
  std::int32_t reach;             ///< positions behind its own that a query sees, or kNoWindow
  AttentionHeads<void> o;
  float* lse;
  AttentionHeads<const void> q, k, v;
  float scale;
  int multiprocessors;
  RowCodes quantized;  ///< Hopper's: of o's rows, which heads fill
};

struct AttentionGpuBackward {
  Exec exec;
  AttentionShape shape;
  AttentionRanges q_ranges, kv_ranges;
  const std::int32_t* first_key;
  std::int32_t reach;
  AttentionHeads<float> dq, dk, dv;
  /// Hopper's: dk and dv of all keys as bf16, in place of what is added to those, and dq is cleared
  /// first; or null.
  AttentionHeads<void> to_dk, to_dv;
  AttentionHeads<const void> d_o, q, k, v;
  const float *lse, *delta;
  float scale;
  /// Scratch [B, tiles, 2]: least and most first key of each query tile. Null without documents.
  std::int32_t* tile_first_key;
  std::int32_t tile_stride;  ///< from sequence to sequence; of tiles of kAttentionGpuTileMin
  bool atomics;              ///< dq may be added to in any order
  /// Hopper's, where dq is added to in one order: scratch of a number, and of one for each
  /// sequence, head and tile of queries.
  std::int32_t* turns;
};

/// Log-sum-exps [B, T, H] as this program has them from [B, H, T] as a library has them, or back.
struct AttentionTransposeLse {
  enum class Order : std::uint8_t { kByToken, kByHead };
  Exec exec;
  std::int64_t sequences, tokens, heads;  ///< fewer than 2^31 numbers
  Order to_order;
  float* to;
  const float* from;
};

/// to += from, bf16 [tokens, heads, head_dim]; fewer than 2^31 numbers.
struct AttentionAddHeads {
  Exec exec;
  std::int64_t tokens, heads, head_dim;
  AttentionHeads<float> to;
  const void* from;
};

/// to = from, rounded: [tokens, heads, head_dim]; fewer than 2^31 numbers.
struct AttentionRoundHeads {
  Exec exec;
  std::int64_t tokens, heads, head_dim;
  AttentionHeads<void> to;
  AttentionHeads<const float> from;
};

struct AttentionGpuKernels {
  void (*forward)(const AttentionGpuForward&);
  void (*backward)(const AttentionGpuBackward&);
  void (*forward_dropping)(const AttentionGpuForward&, const AttentionDropping&);
  void (*backward_dropping)(const AttentionGpuBackward&, const AttentionDropping&);
  void (*cached)(const AttentionCachedArgs&);
  void (*merge)(const AttentionRowsArgs&);
  void (*delta)(const AttentionRowsArgs&);
  void (*sinks)(const AttentionSinksArgs&);
  void (*sink_terms)(const AttentionSinksArgs&);
  void (*transpose_lse)(const AttentionTransposeLse&);
  void (*add_heads)(const AttentionAddHeads&);
  void (*round_heads)(const AttentionRoundHeads&);
};
/// Those for Hopper, which serve what TMA can bring and the tiles of their head sizes hold.
struct AttentionHopperKernels {
  bool (*serves_forward)(const AttentionGpuForward&);
  void (*forward)(const AttentionGpuForward&);
  bool (*serves_backward)(const AttentionGpuBackward&);
  void (*backward)(const AttentionGpuBackward&);
};
namespace cuda {
extern const AttentionGpuKernels attention_cuda;
extern const AttentionHopperKernels attention_sm90;  ///< where code for sm_90a is compiled
}  // namespace cuda

}  // namespace trireme
