#pragma once

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/cpu_tables.h"

namespace trireme {

/// Queries and keys go in blocks of this many tokens: their tiles stay in the first two caches.
inline constexpr std::int64_t kAttentionBlock = 64;
/// The forward pass takes more queries at once: a block of keys is copied for each of their blocks.
inline constexpr std::int64_t kAttentionForwardQueries = 128;

/// Keys [index, index + count) of a sequence stand at position, position + 1, ...; a block never
/// spans two ranges. The boundaries depend on the ranges alone, and so do the sums over keys.
struct AttentionKeyBlock {
  std::int64_t index, count, position;
};

struct AttentionShape {
  std::int64_t sequences, q_tokens, kv_tokens, heads, kv_heads;
  std::int64_t head_dim, value_dim;  ///< of q and k; of v and o
  DType type;
};

/// How many positions behind its own a query sees, where no window limits it.
inline constexpr std::int32_t kNoWindow = 0x7fffffff;

struct AttentionVisibility {
  const std::int64_t* q_position;  ///< [Tq]
  const AttentionKeyBlock* key_blocks;
  std::int64_t key_block_count;
  const std::int32_t* first_key;  ///< [B * Tq], or null
  std::int64_t reach;             ///< positions behind its own that a query sees, or kNoWindow
};

/// The unit of work: a block of queries (forward) or keys (backward) of a group, which is a
/// sequence and a query head (forward) or key head (backward).
struct AttentionItem {
  std::int64_t group, block;
};

template <class Data>
struct AttentionHeads {
  Data* data;
  std::int64_t stride;  ///< from token to token, in elements
};

/// AttentionDropout as kernels read it.
struct AttentionDropping {
  std::uint64_t key = 0;
  const std::uint32_t* samples = nullptr;  ///< of sequence b: samples[b stride]
  std::int64_t stride = 0;
  std::uint32_t first_head = 0;
  std::uint32_t dropped = 0;  ///< of 2^16; 0: none
  float factor = 1;           ///< of what is kept

  [[nodiscard]] bool drops() const { return dropped > 0; }
};

struct AttentionForwardArgs {
  AttentionShape shape;
  AttentionVisibility visibility;
  AttentionHeads<void> o;
  float* lse;
  AttentionHeads<const void> q, k, v;
  float scale;
  const AttentionItem* starts;  ///< of each piece, and the end
  int pieces;
  std::byte* scratch;
  AttentionDropping dropping;  ///< not with forward_few
};

struct AttentionBackwardArgs {
  AttentionShape shape;
  AttentionVisibility visibility;
  AttentionHeads<float> dq, dk, dv;
  AttentionHeads<const void> d_o, q, k, v;
  const float *lse, *delta;
  float scale;
  const AttentionItem* starts;
  int pieces;
  std::byte* scratch;
  float* partial;  ///< pieces * [H/G, Tq, D], where several pieces share a group; else null
  AttentionDropping dropping;
};

struct AttentionRowsArgs {
  Exec exec;
  std::int64_t tokens, heads, head_dim;
  DType type;
  AttentionHeads<void> o;  ///< merge only
  AttentionHeads<const void> o2, d_o;
  float *lse, *delta;
  const float* lse2;
};

/// Joined: o and lse; for terms lse and delta are read. `type`: of o and sink.
struct AttentionSinksArgs {
  Exec exec;
  std::int64_t tokens, heads, head_dim;
  DType type;
  AttentionHeads<void> o;
  const void* sink;
  float *joined_lse, *terms;
  const float *lse, *delta;
};

/// attention_cached. On a CPU item i is key head i mod G of row i / G, and its query heads.
struct AttentionCachedArgs {
  Exec exec;
  std::int64_t rows, heads, kv_heads, head_dim, value_dim;
  DType type;
  AttentionHeads<void> o;
  float* lse;  ///< or null
  AttentionHeads<const void> q, k, v;
  const std::int32_t *pages, *sequence, *position;
  std::int64_t pages_stride, page;  ///< page: tokens
  float scale;
  std::int32_t reach;                    ///< as in AttentionVisibility
  std::int64_t longest = 0;              ///< keys that a row sees, at most
  const std::int64_t* starts = nullptr;  ///< items: of each piece, and the end
  int pieces = 0;
  std::byte* scratch = nullptr;
  std::int64_t scratch_of_piece = 0;
};

struct AttentionKernels {
  /// Bytes of scratch for each piece, multiples of 64.
  std::int64_t (*forward_scratch)(const AttentionShape&);
  std::int64_t (*backward_scratch)(const AttentionShape&);
  void (*forward)(const AttentionForwardArgs&);
  /// For a few queries (a key/value cache): items are single queries, in place of blocks.
  void (*forward_few)(const AttentionForwardArgs&);
  /// Bytes for each piece, for head_dim and the longest row.
  std::int64_t (*cached_scratch)(std::int64_t head_dim, std::int64_t longest);
  void (*cached)(const AttentionCachedArgs&);
  void (*backward)(const AttentionBackwardArgs&);
  void (*merge)(const AttentionRowsArgs&);
  void (*delta)(const AttentionRowsArgs&);
  void (*sinks)(const AttentionSinksArgs&);
  void (*sink_terms)(const AttentionSinksArgs&);
};
TRIREME_CPU_TABLES(AttentionKernels, attention_cpu);

}  // namespace trireme
