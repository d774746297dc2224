// Forward: a thread owns a block of queries of one head. Lanes are queries: scores are kept
// transposed, S^T[key][query] = K Q^T: a query's maximum and sum are its lane's, never folded.

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_dropout.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/attention_view.h"
#include "kernels/common/parallel.h"
#include "kernels/common/tile_product.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kQueries = kAttentionForwardQueries;
constexpr std::int64_t kGroupsMax = kQueries / kGroup;
constexpr std::int64_t kGroupsInPanel = kPanel / kGroup;

struct ForwardTiles {
  std::int64_t stride, value_stride;
  float* k;         // [64][stride]
  float* v;         // [64][value_stride]
  float* q_panels;  // [panel][head_dim][kPanel], times scale log2(e): scores are exponents of 2
  float* o;         // [128][value_stride]
  float* s;         // [64][kPanel]: scores, then probabilities of a panel
  float *maximum, *sum;  // [128], of the queries
  float* rescale;        // [kPanel]
  float *low, *high;     // [128]
  float* factors;        // [64][kPanel], of a panel's pairs: with dropout
};

ForwardTiles forward_tiles(TileMemory& memory, const AttentionShape& shape) {
  ForwardTiles t;
  t.stride = tile_stride(shape.head_dim);
  t.value_stride = tile_stride(shape.value_dim);
  t.k = memory.take(kAttentionBlock * t.stride);
  t.v = memory.take(kAttentionBlock * t.value_stride);
  t.q_panels = memory.take(kQueries * shape.head_dim);
  t.o = memory.take(kQueries * t.value_stride);
  t.s = memory.take(kAttentionBlock * kPanel);
  t.maximum = memory.take(kQueries);
  t.sum = memory.take(kQueries);
  t.rescale = memory.take(kPanel);
  t.low = memory.take(kQueries);
  t.high = memory.take(kQueries);
  t.factors = memory.take(kAttentionBlock * kPanel);
  return t;
}

/// The queries of one item.
struct QueryBlock {
  std::int64_t sequence, head, kv_head, query, count;
};
QueryBlock query_block(const AttentionShape& shape, std::int64_t item) {
  const std::int64_t blocks = (shape.q_tokens + kQueries - 1) / kQueries;
  const std::int64_t group = item / blocks, query = item % blocks * kQueries;
  const std::int64_t head = group % shape.heads, left = shape.q_tokens - query;
  return {group / shape.heads, head, head / (shape.heads / shape.kv_heads), query,
          left < kQueries ? left : kQueries};
}

/// Rows of two operands used after this block of keys; each group of queries prefetches a part.
struct Ahead {
  RowsAhead a, b;
  TRIREME_INLINE void fetch(std::int64_t group) const {
    const std::int64_t count = a.count > b.count ? a.count : b.count;
    for (std::int64_t i = count * group / kGroupsMax; i < count * (group + 1) / kGroupsMax; ++i) {
      a.fetch(i);
      b.fetch(i);
    }
  }
};

/// Scores to probabilities in place for the group that begins at lane `first` of a panel. Updates
/// its maximum and sum; `rescale` becomes earlier sums' factor. Sums run in ascending keys. With
/// dropout probabilities get their factors, their sum does not.
template <bool kMasked, bool kDrops>
void softmax_group(const ForwardTiles& t, std::int64_t panel, std::int64_t first, KeySpan span) {
  const std::int64_t base = panel * kPanel;
  for (std::int64_t lane = first; lane < first + kGroup; lane += F32::kWidth) {
    const F32 lowest = F32::broadcast(-kAttentionInfinity);
    const F32 low = F32::load(t.low + base + lane), high = F32::load(t.high + base + lane);
    const F32 old = F32::load(t.maximum + base + lane);
    F32 best = old;
    for (std::int64_t j = span.low; j < span.high; ++j) {
      float* s = t.s + j * kPanel + lane;
      F32 score = F32::load(s);
      if constexpr (kMasked) {
        const F32 index = F32::broadcast(static_cast<float>(j));
        score = select((low <= index) & (index < high), score, lowest);
        score.store(s);
      }
      best = max(score, best);
    }
    // A query that has seen no key yet: subtract 0, so that exp2(-inf) is 0.
    const F32 subtract = select(best == lowest, F32::zero(), best);
    const F32 rescale = exp2(old - subtract);
    F32 sum = F32::load(t.sum + base + lane) * rescale;
    for (std::int64_t j = span.low; j < span.high; ++j) {
      float* s = t.s + j * kPanel + lane;
      const F32 p = exp2(F32::load(s) - subtract);
      if constexpr (kDrops)
        (p * F32::load(t.factors + j * kPanel + lane)).store(s);
      else
        p.store(s);
      sum = sum + p;
    }
    best.store(t.maximum + base + lane);
    sum.store(t.sum + base + lane);
    rescale.store(t.rescale + lane);
  }
}

/// S^T of the keys `span` and of `lanes` queries from lane `first` of a panel.
void scores(const ForwardTiles& t, std::int64_t panel, std::int64_t head_dim, std::int64_t first,
            std::int64_t lanes, KeySpan span) {
  if (span.empty()) return;
  Product<> product{};
  product.a = t.k + span.low * t.stride;
  product.a_stride = t.stride;
  product.b = t.q_panels + panel * head_dim * kPanel + first;
  product.b_stride = kPanel;
  product.c = t.s + span.low * kPanel + first;
  product.c_stride = kPanel;
  product.rows = span.high - span.low;
  product.columns = lanes;
  product.depth = head_dim;
  multiply<OperandA::kRows, Store::kSet>(product);
}

/// Keys that all groups of a panel see are multiplied with all its lanes, others group by group.
void scores_of_panel(const ForwardTiles& t, std::int64_t panel, const BlockView* views,
                     std::int64_t head_dim) {
  KeySpan common = views[0].hull;
  for (std::int64_t g = 1; g < kGroupsInPanel; ++g) {
    const KeySpan hull = views[g].hull;
    common = {hull.low > common.low ? hull.low : common.low,
              hull.high < common.high ? hull.high : common.high};
  }
  scores(t, panel, head_dim, 0, kPanel, common);
  if (kGroupsInPanel == 1) return;
  for (std::int64_t g = 0; g < kGroupsInPanel; ++g) {
    const KeySpan hull = views[g].hull;
    if (common.empty()) {
      scores(t, panel, head_dim, g * kGroup, kGroup, hull);
    } else {
      scores(t, panel, head_dim, g * kGroup, kGroup, {hull.low, common.low});
      scores(t, panel, head_dim, g * kGroup, kGroup, {common.high, hull.high});
    }
  }
}

/// `views`: what each group of the panel sees; `queries` of it there are.
template <bool kDrops>
void attend_panel(const ForwardTiles& t, std::int64_t panel, std::int64_t queries,
                  const BlockView* views, const AttentionShape& shape, const Ahead& ahead) {
  scores_of_panel(t, panel, views, shape.head_dim);
  for (std::int64_t first = 0; first < queries; first += kGroup) {
    ahead.fetch(panel * kGroupsInPanel + first / kGroup);
    const auto& [span, whole] = views[first / kGroup];
    if (span.empty()) continue;
    whole ? softmax_group<false, kDrops>(t, panel, first, span)
          : softmax_group<true, kDrops>(t, panel, first, span);
    Product<> output{};
    output.a = t.s + span.low * kPanel + first;
    output.a_stride = kPanel;
    output.b = t.v + span.low * t.value_stride;
    output.b_stride = t.value_stride;
    output.c = t.o + (panel * kPanel + first) * t.value_stride;
    output.c_stride = t.value_stride;
    output.rows = queries - first < kGroup ? queries - first : kGroup;
    output.columns = whole_vectors(shape.value_dim);
    output.depth = span.high - span.low;
    output.row_scale = t.rescale + first;
    multiply<OperandA::kColumns, Store::kScaleAndAdd>(output);
  }
}

template <class T>
struct ForwardBlock {
  const AttentionForwardArgs& args;
  const ForwardTiles& t;
  QueryBlock b;

  [[nodiscard]] std::int64_t first_row() const {
    return b.sequence * args.shape.q_tokens + b.query;
  }
  [[nodiscard]] std::int64_t kv_row(std::int64_t key) const {
    return b.sequence * args.shape.kv_tokens + key;
  }
  [[nodiscard]] const T* queries() const {
    return row_of_head<const T>(args.q, first_row(), b.head, args.shape.head_dim);
  }
  [[nodiscard]] const T* keys(std::int64_t key) const {
    return row_of_head<const T>(args.k, kv_row(key), b.kv_head, args.shape.head_dim);
  }
  [[nodiscard]] const T* values(std::int64_t key) const {
    return row_of_head<const T>(args.v, kv_row(key), b.kv_head, args.shape.value_dim);
  }
  [[nodiscard]] T* output(std::int64_t query) const {
    return row_of_head<T>(args.o, first_row() + query, b.head, args.shape.value_dim);
  }

  void load_queries() const {
    const AttentionShape& shape = args.shape;
    const T* q = queries();
    // Lanes without a query compute on zeros; nothing of theirs is stored.
    for (std::int64_t i = 0; i < b.count; i += kPanel) {
      pack_rows<kPanel>(t.q_panels + i * shape.head_dim, q + i * args.q.stride, args.q.stride,
                        b.count - i, shape.head_dim, args.scale * kLog2E);
    }
    clear_tile(t.o, b.count * t.value_stride);
    clear_tile(t.sum, kQueries);
    clear_tile(t.low, kQueries);
    clear_tile(t.high, kQueries);
    for (std::int64_t i = 0; i < kQueries; ++i) t.maximum[i] = -kAttentionInfinity;
  }

  void load_keys(const AttentionKeyBlock& block, KeySpan span) const {
    const AttentionShape& shape = args.shape;
    const T* k = keys(block.index + span.low);
    const T* v = values(block.index + span.low);
    const std::int64_t rows = span.high - span.low;
    copy_rows({t.k + span.low * t.stride, t.stride, args.k.stride, rows, shape.head_dim, 1.0F}, k);
    copy_rows({t.v + span.low * t.value_stride, t.value_stride, args.v.stride, rows,
               shape.value_dim, 1.0F},
              v);
  }

  [[nodiscard]] Ahead keys_ahead(const AttentionKeyBlock& block) const {
    const auto& [index, count, position] = block;
    return {RowsAhead::of(keys(index), args.k.stride, count, args.shape.head_dim),
            RowsAhead::of(values(index), args.v.stride, count, args.shape.value_dim)};
  }
  /// The next item's queries, and where this one's outputs go.
  [[nodiscard]] Ahead ends_ahead(const ForwardBlock* next) const {
    Ahead ahead = {{}, RowsAhead::of(output(0), args.o.stride, b.count, args.shape.value_dim)};
    if (next != nullptr)
      ahead.a = RowsAhead::of(next->queries(), args.q.stride, next->b.count, args.shape.head_dim);
    return ahead;
  }

  void attend(const AttentionKeyBlock& block, const Ahead& ahead) const {
    const std::int64_t sequence_row = b.sequence * args.shape.q_tokens;
    BlockView views[kGroupsMax];
    KeySpan hull = {block.count, 0};
    for (std::int64_t i = 0; i < b.count; i += kGroup) {
      const std::int64_t queries = b.count - i < kGroup ? b.count - i : kGroup;
      BlockView& view = views[i / kGroup];
      view = view_block(args.visibility, block, sequence_row, b.query + i, queries,
                        {t.low + i, t.high + i});
      if (view.hull.empty()) continue;
      hull.low = view.hull.low < hull.low ? view.hull.low : hull.low;
      hull.high = view.hull.high > hull.high ? view.hull.high : hull.high;
    }
    if (hull.empty()) return;
    load_keys(block, hull);
    for (std::int64_t i = 0; i < b.count; i += kPanel) {
      const std::int64_t queries = b.count - i < kPanel ? b.count - i : kPanel;
      const BlockView* seen = views + i / kGroup;
      if (!args.dropping.drops()) {
        attend_panel<false>(t, i / kPanel, queries, seen, args.shape, ahead);
        continue;
      }
      factors_of<FactorLanes::kQueries>(
          args.dropping,
          {b.sequence, b.head, args.visibility.q_position + b.query + i, queries, block.position,
           block.count},
          t.factors, kPanel);
      attend_panel<true>(t, i / kPanel, queries, seen, args.shape, ahead);
    }
  }

  void finish() const {
    const AttentionShape& shape = args.shape;
    for (std::int64_t i = 0; i < b.count; ++i) {
      T* o = output(i);
      const float sum = t.sum[i];
      const F32 inverse = F32::broadcast(sum == 0 ? 0.0F : 1.0F / sum);
      for_each_vector(0, shape.value_dim, [&](std::int64_t d, auto lanes) {
        (F32::load(t.o + i * t.value_stride + d) * inverse).store(o + d, lanes);
      });
    }
    // In place: maximum becomes log-sum-exp.
    for (std::int64_t i = 0; i < kQueries; i += F32::kWidth) {
      const F32 m = F32::load(t.maximum + i), sum = F32::load(t.sum + i);
      const F32 lse = fma(m, F32::broadcast(kLn2), log(sum));
      select(sum == F32::zero(), F32::broadcast(-kAttentionInfinity), lse).store(t.maximum + i);
    }
    for (std::int64_t i = 0; i < b.count; ++i)
      args.lse[(first_row() + i) * shape.heads + b.head] = t.maximum[i];
  }

  /// `next`: the item after this one, or null.
  void run(const ForwardBlock* next) const {
    const AttentionVisibility& visibility = args.visibility;
    const std::int64_t highest = extent_of(visibility.q_position + b.query, b.count).high;
    load_queries();
    for (std::int64_t j = 0; j < visibility.key_block_count; ++j) {
      const AttentionKeyBlock* after = visibility.key_blocks + j + 1;
      const bool last = j + 1 == visibility.key_block_count || after->position > highest;
      attend(visibility.key_blocks[j], last ? ends_ahead(next) : keys_ahead(*after));
    }
    finish();
  }
};

template <class T>
void forward_piece(const AttentionForwardArgs& args, int piece) {
  const AttentionShape& shape = args.shape;
  TileMemory memory(args.scratch + piece * attention_forward_scratch(shape));
  const ForwardTiles tiles = forward_tiles(memory, shape);
  const std::int64_t blocks = (shape.q_tokens + kQueries - 1) / kQueries;
  const AttentionItem first = args.starts[piece], last = args.starts[piece + 1];
  const std::int64_t end = last.group * blocks + last.block;
  for (std::int64_t item = first.group * blocks + first.block; item < end; ++item) {
    const ForwardBlock<T> block = {args, tiles, query_block(shape, item)};
    const ForwardBlock<T> next = {args, tiles, query_block(shape, item + 1)};
    block.run(item + 1 < end ? &next : nullptr);
  }
}

}  // namespace

std::int64_t attention_forward_scratch(const AttentionShape& shape) {
  TileMemory tiles(nullptr), few(nullptr);
  forward_tiles(tiles, shape);
  few_query_tiles(few, shape);
  return tiles.bytes() > few.bytes() ? tiles.bytes() : few.bytes();
}

void attention_forward(const AttentionForwardArgs& args) {
  parallel_pieces(args.pieces, args.pieces, [&](int piece, std::int64_t, std::int64_t) {
    if (args.shape.type == DType::kF32) return forward_piece<float>(args, piece);
    forward_piece<BFloat16>(args, piece);
  });
}

}  // namespace trireme::TRIREME_ISA
