// Backward: a thread owns a block of keys of one key head and goes over the queries that see it: dk
// and dv stay with it. Lanes are keys: P[query][key] and dS are at once broadcast operands of dv,
// dk (by columns) and dq (by rows), and only k and v, the outer of the loops, are transposed.

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_dropout.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/attention_view.h"
#include "kernels/common/parallel.h"
#include "kernels/common/tile_product.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kScoreStride = kAttentionBlock + 16;  // an odd number of cache lines
/// Where some queries see a part of a block, groups of them go one by one, each with its part.
constexpr std::int64_t kStripsMax = kAttentionBlock / kGroup;

struct BackwardTiles {
  std::int64_t stride, value_stride;
  float* k;                    // [64][stride]
  float *k_panels, *v_panels;  // [panel][head_dim][kPanel], [panel][value_dim][kPanel]
  float *q, *d_o;              // [64][stride], [64][value_stride]
  float *p, *ds;               // [64][kScoreStride]
  float *dq, *dk;              // [64][stride]
  float* dv;                   // [64][value_stride]
  float *lse, *delta;          // [64]; lse in powers of 2
  float *low, *high;           // [64]
  float* factors;              // [64][kScoreStride]: with dropout
};

BackwardTiles backward_tiles(TileMemory& memory, const AttentionShape& shape) {
  BackwardTiles t;
  t.stride = tile_stride(shape.head_dim);
  t.value_stride = tile_stride(shape.value_dim);
  const std::int64_t tile = kAttentionBlock * t.stride,
                     value_tile = kAttentionBlock * t.value_stride;
  t.k = memory.take(tile);
  t.k_panels = memory.take(kAttentionBlock * shape.head_dim);
  t.v_panels = memory.take(kAttentionBlock * shape.value_dim);
  t.q = memory.take(tile);
  t.d_o = memory.take(value_tile);
  t.p = memory.take(kAttentionBlock * kScoreStride);
  t.ds = memory.take(kAttentionBlock * kScoreStride);
  t.dq = memory.take(tile);
  t.dk = memory.take(tile);
  t.dv = memory.take(value_tile);
  t.lse = memory.take(kAttentionBlock);
  t.delta = memory.take(kAttentionBlock);
  t.low = memory.take(kAttentionBlock);
  t.high = memory.take(kAttentionBlock);
  t.factors = memory.take(kAttentionBlock * kScoreStride);
  return t;
}

/// Queries [begin, end) of a query block and the keys that they see, in whole groups.
struct Strip {
  std::int64_t begin, end;
  KeySpan keys;
  bool whole;  ///< each query sees each key
  [[nodiscard]] bool sees(std::int64_t key) const { return keys.low <= key && key < keys.high; }
};

TRIREME_INLINE KeySpan in_groups(KeySpan keys) {
  return {keys.low / kGroup * kGroup, (keys.high + kGroup - 1) / kGroup * kGroup};
}

/// What the queries of a block see of a key block.
struct StripList {
  Strip strips[kStripsMax];
  int count = 0;
  bool whole = true, empty = true;
};

/// Rows of `tile` added to f32 rows of the caller.
TRIREME_INLINE void add_rows(float* to, std::int64_t to_stride, const float* tile,
                             std::int64_t stride, std::int64_t rows, std::int64_t head_dim) {
  for (std::int64_t r = 0; r < rows; ++r) {
    for_each_vector(0, head_dim, [&](std::int64_t d, auto lanes) {
      float* element = to + r * to_stride + d;
      (F32::load(element, lanes) + F32::load(tile + r * stride + d, lanes)).store(element, lanes);
    });
  }
}

/// What the next block of queries reads and adds to.
struct QueriesAhead {
  RowsAhead q, d_o, dq;
  TRIREME_INLINE void fetch(std::int64_t row) const {
    q.fetch(row);
    d_o.fetch(row);
    dq.fetch(row);
  }
};

template <class T>
struct BackwardBlock {
  const AttentionBackwardArgs& args;
  const BackwardTiles& t;
  AttentionKeyBlock keys;
  std::int64_t sequence, kv_head;

  [[nodiscard]] std::int64_t dim() const { return args.shape.head_dim; }
  [[nodiscard]] std::int64_t value_dim() const { return args.shape.value_dim; }
  /// Of the block of queries that begins at `query`.
  [[nodiscard]] std::int64_t queries_from(std::int64_t query) const {
    const std::int64_t left = args.shape.q_tokens - query;
    return left < kAttentionBlock ? left : kAttentionBlock;
  }
  [[nodiscard]] std::int64_t query_row(std::int64_t query) const {
    return sequence * args.shape.q_tokens + query;
  }

  void load_keys() const {
    const std::int64_t row = sequence * args.shape.kv_tokens + keys.index;
    const T* k = row_of_head<const T>(args.k, row, kv_head, dim());
    const T* v = row_of_head<const T>(args.v, row, kv_head, value_dim());
    copy_rows({t.k, t.stride, args.k.stride, keys.count, dim(), 1.0F}, k);
    for (std::int64_t i = 0; i < kAttentionBlock; i += kPanel) {
      const std::int64_t rows = keys.count - i;
      pack_rows<kPanel>(t.k_panels + i * dim(), k + i * args.k.stride, args.k.stride, rows, dim(),
                        1.0F);
      pack_rows<kPanel>(t.v_panels + i * value_dim(), v + i * args.v.stride, args.v.stride, rows,
                        value_dim(), 1.0F);
    }
    clear_tile(t.dk, kAttentionBlock * t.stride);
    clear_tile(t.dv, kAttentionBlock * t.value_stride);
  }

  void store_keys() const {
    const std::int64_t row = sequence * args.shape.kv_tokens + keys.index;
    add_rows(row_of_head<float>(args.dk, row, kv_head, dim()), args.dk.stride, t.dk, t.stride,
             keys.count, dim());
    add_rows(row_of_head<float>(args.dv, row, kv_head, value_dim()), args.dv.stride, t.dv,
             t.value_stride, keys.count, value_dim());
  }

  [[nodiscard]] StripList strips(std::int64_t query, std::int64_t count) const {
    StripList list;
    for (std::int64_t begin = 0; begin < count; begin += kGroup) {
      const std::int64_t end = begin + kGroup < count ? begin + kGroup : count;
      const BlockView view =
          view_block(args.visibility, keys, sequence * args.shape.q_tokens, query + begin,
                     end - begin, {t.low + begin, t.high + begin});
      list.whole = list.whole && view.whole;
      list.empty = list.empty && view.hull.empty();
      list.strips[list.count++] = {begin, end, in_groups(view.hull), view.whole};
    }
    if (list.whole) {
      list.count = 1;
      list.strips[0] = {0, count, in_groups({0, keys.count}), true};
    }
    return list;
  }

  void load_queries(std::int64_t head, std::int64_t query, std::int64_t count) const {
    const std::int64_t row = query_row(query);
    copy_rows({t.q, t.stride, args.q.stride, count, dim(), 1.0F},
              row_of_head<const T>(args.q, row, head, dim()));
    copy_rows({t.d_o, t.value_stride, args.d_o.stride, count, value_dim(), 1.0F},
              row_of_head<const T>(args.d_o, row, head, value_dim()));
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t at = (row + i) * args.shape.heads + head;
      t.lse[i] = args.lse[at] * kLog2E;
      t.delta[i] = args.delta[at];
    }
  }

  /// P and dS of a strip from the products that stand there; with dropout P~.
  template <bool kMasked, bool kDrops>
  void probabilities(const Strip& strip, const QueriesAhead& ahead) const {
    const F32 score_scale = F32::broadcast(args.scale * kLog2E), scale = F32::broadcast(args.scale);
    for (std::int64_t i = strip.begin; i < strip.end; ++i) {
      ahead.fetch(i);
      const F32 lse = F32::broadcast(t.lse[i]), delta = F32::broadcast(t.delta[i]);
      const F32 low = F32::broadcast(t.low[i]), high = F32::broadcast(t.high[i]);
      for (std::int64_t j = strip.keys.low; j < strip.keys.high; j += F32::kWidth) {
        float* p_at = t.p + i * kScoreStride + j;
        float* ds_at = t.ds + i * kScoreStride + j;
        F32 p = exp2(fma(F32::load(p_at), score_scale, -lse));
        F32 dp = F32::load(ds_at);
        const F32 probability = p;
        if constexpr (kDrops) {
          const F32 factor = F32::load(t.factors + i * kScoreStride + j);
          dp = dp * factor;
          p = p * factor;
        }
        F32 ds = probability * (dp - delta) * scale;
        if constexpr (kMasked) {
          const F32 index = F32::iota() + F32::broadcast(static_cast<float>(j));
          const Mask seen = (low <= index) & (index < high);
          p = select(seen, p, F32::zero());
          ds = select(seen, ds, F32::zero());
        }
        p.store(p_at);
        ds.store(ds_at);
      }
    }
  }

  /// P and dS of the keys that a strip does not see are 0: strips beside it may see them.
  void clear_unseen(const Strip& strip) const {
    for (std::int64_t i = strip.begin; i < strip.end; ++i) {
      for (std::int64_t key = 0; key < kAttentionBlock; key += kGroup) {
        if (strip.sees(key)) continue;
        clear_tile(t.p + i * kScoreStride + key, kGroup);
        clear_tile(t.ds + i * kScoreStride + key, kGroup);
      }
    }
  }

  void scores(const Strip& strip, const QueriesAhead& ahead) const {
    for (std::int64_t panel = 0; panel < kAttentionBlock; panel += kPanel) {
      const std::int64_t low = strip.keys.low > panel ? strip.keys.low : panel;
      const std::int64_t end = panel + kPanel;
      const std::int64_t high = strip.keys.high < end ? strip.keys.high : end;
      if (low >= high) continue;
      Product<> product{};
      product.a = t.q + strip.begin * t.stride;
      product.a_stride = t.stride;
      product.b = t.k_panels + panel * dim() + low - panel;
      product.b_stride = kPanel;
      product.c = t.p + strip.begin * kScoreStride + low;
      product.c_stride = kScoreStride;
      product.rows = strip.end - strip.begin;
      product.columns = high - low;
      product.depth = dim();
      multiply<OperandA::kRows, Store::kSet>(product);
      product.a = t.d_o + strip.begin * t.value_stride;
      product.a_stride = t.value_stride;
      product.b = t.v_panels + panel * value_dim() + low - panel;
      product.c = t.ds + strip.begin * kScoreStride + low;
      product.depth = value_dim();
      multiply<OperandA::kRows, Store::kSet>(product);
    }
    if (args.dropping.drops())
      strip.whole ? probabilities<false, true>(strip, ahead)
                  : probabilities<true, true>(strip, ahead);
    else
      strip.whole ? probabilities<false, false>(strip, ahead)
                  : probabilities<true, false>(strip, ahead);
  }

  /// dv += P^T dO, dk += dS^T q for keys [key, key + count) over queries [begin, end).
  void add_key_gradients(std::int64_t key, std::int64_t count, std::int64_t begin,
                         std::int64_t end) const {
    Product<> product{};
    product.a = t.p + begin * kScoreStride + key;
    product.a_stride = kScoreStride;
    product.b = t.d_o + begin * t.value_stride;
    product.b_stride = t.value_stride;
    product.c = t.dv + key * t.value_stride;
    product.c_stride = t.value_stride;
    product.rows = count;
    product.columns = whole_vectors(value_dim());
    product.depth = end - begin;
    multiply<OperandA::kColumns, Store::kAdd>(product);
    product.a = t.ds + begin * kScoreStride + key;
    product.b = t.q + begin * t.stride;
    product.b_stride = t.stride;
    product.c = t.dk + key * t.stride;
    product.c_stride = t.stride;
    product.columns = whole_vectors(dim());
    multiply<OperandA::kColumns, Store::kAdd>(product);
  }

  void key_gradients(const StripList& list) const {
    if (list.whole) return add_key_gradients(0, keys.count, 0, list.strips[0].end);
    for (std::int64_t key = 0; key < keys.count; key += kGroup) {
      int first = 0, last = list.count;
      while (first < last && !list.strips[first].sees(key)) ++first;
      while (first < last && !list.strips[last - 1].sees(key)) --last;
      if (first == last) continue;
      const std::int64_t left = keys.count - key;
      add_key_gradients(key, left < kGroup ? left : kGroup, list.strips[first].begin,
                        list.strips[last - 1].end);
    }
  }

  /// dq += dS k;  `dq` is the row of the block's first query.
  void query_gradients(const Strip& strip, AttentionHeads<float> dq) const {
    const std::int64_t low = strip.keys.low;
    const std::int64_t high = strip.keys.high < keys.count ? strip.keys.high : keys.count;
    if (low >= high) return;
    const bool in_place = dim() % F32::kWidth == 0;
    float* rows = dq.data + strip.begin * dq.stride;
    Product<> product{};
    product.a = t.ds + strip.begin * kScoreStride + low;
    product.a_stride = kScoreStride;
    product.b = t.k + low * t.stride;
    product.b_stride = t.stride;
    product.c = in_place ? rows : t.dq;
    product.c_stride = in_place ? dq.stride : t.stride;
    product.rows = strip.end - strip.begin;
    product.columns = whole_vectors(dim());
    product.depth = high - low;
    if (in_place) return multiply<OperandA::kRows, Store::kAdd>(product);
    multiply<OperandA::kRows, Store::kSet>(product);
    add_rows(rows, dq.stride, t.dq, t.stride, product.rows, dim());
  }

  /// False: none of these queries sees a key.
  bool visit_queries(std::int64_t head, std::int64_t query, AttentionHeads<float> dq,
                     const QueriesAhead& ahead) const {
    const std::int64_t count = queries_from(query);
    const StripList list = strips(query, count);
    if (list.empty) return false;
    load_queries(head, query, count);
    if (args.dropping.drops())
      factors_of<FactorLanes::kKeys>(
          args.dropping,
          {sequence, head, args.visibility.q_position + query, count, keys.position, keys.count},
          t.factors, kScoreStride);
    for (int i = 0; i < list.count; ++i) {
      if (!list.whole) clear_unseen(list.strips[i]);
      scores(list.strips[i], ahead);
    }
    key_gradients(list);
    for (int i = 0; i < list.count; ++i) query_gradients(list.strips[i], dq);
    return true;
  }

  /// Where dq of a head's query stands: in `partial`, where that is given, else the caller's.
  [[nodiscard]] AttentionHeads<float> dq_of(float* partial, std::int64_t head,
                                            std::int64_t query) const {
    const std::int64_t queries = args.shape.q_tokens;
    const std::int64_t first_head = kv_head * (args.shape.heads / args.shape.kv_heads);
    if (partial != nullptr)
      return {partial + ((head - first_head) * queries + query) * dim(), dim()};
    return {row_of_head<float>(args.dq, query_row(query), head, dim()), args.dq.stride};
  }

  [[nodiscard]] QueriesAhead queries_ahead(std::int64_t head, std::int64_t query,
                                           AttentionHeads<float> dq) const {
    const std::int64_t row = query_row(query), count = queries_from(query);
    return {
        RowsAhead::of(row_of_head<const T>(args.q, row, head, dim()), args.q.stride, count, dim()),
        RowsAhead::of(row_of_head<const T>(args.d_o, row, head, value_dim()), args.d_o.stride,
                      count, value_dim()),
        RowsAhead::of(dq.data, dq.stride, count, dim())};
  }

  /// `partial`: where dq of this piece goes, or null to add it to the caller's.
  void run(float* partial) const {
    load_keys();
    const std::int64_t heads = args.shape.heads / args.shape.kv_heads,
                       queries = args.shape.q_tokens;
    std::int64_t first_seen = queries;  // the same for all heads
    for (std::int64_t head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
      for (std::int64_t query = 0; query < queries; query += kAttentionBlock) {
        std::int64_t next_head = head, next = query + kAttentionBlock;
        if (next >= queries) {
          ++next_head;
          next = first_seen;
        }
        QueriesAhead ahead;
        if (next_head < (kv_head + 1) * heads && next < queries)
          ahead = queries_ahead(next_head, next, dq_of(partial, next_head, next));
        const bool seen = visit_queries(head, query, dq_of(partial, head, query), ahead);
        if (seen && query < first_seen) first_seen = query;
      }
    }
    store_keys();
  }
};

std::int64_t partial_count(const AttentionShape& shape) {
  return shape.heads / shape.kv_heads * shape.q_tokens * shape.head_dim;
}

/// A piece that begins inside a group shares its queries with the pieces before it.
bool shares_first_group(const AttentionBackwardArgs& args, int piece) {
  const AttentionItem first = args.starts[piece], last = args.starts[piece + 1];
  const bool empty = first.group == last.group && first.block == last.block;
  return first.block > 0 && !empty;
}

template <class T>
void backward_piece(const AttentionBackwardArgs& args, int piece) {
  const AttentionShape& shape = args.shape;
  TileMemory memory(args.scratch + piece * attention_backward_scratch(shape));
  const BackwardTiles tiles = backward_tiles(memory, shape);
  float* partial = nullptr;
  if (shares_first_group(args, piece)) {
    partial = args.partial + piece * partial_count(shape);
    clear_tile(partial, partial_count(shape));
  }
  const std::int64_t blocks = args.visibility.key_block_count;
  const AttentionItem first = args.starts[piece], last = args.starts[piece + 1];
  for (std::int64_t item = first.group * blocks + first.block;
       item < last.group * blocks + last.block; ++item) {
    const std::int64_t group = item / blocks;
    const BackwardBlock<T> block = {args, tiles, args.visibility.key_blocks[item % blocks],
                                    group / shape.kv_heads, group % shape.kv_heads};
    block.run(group == first.group ? partial : nullptr);
  }
}

/// dq += the pieces' own sums, piece by piece; rows are shared out.
void add_partials(const AttentionBackwardArgs& args) {
  const AttentionShape& shape = args.shape;
  const std::int64_t heads = shape.heads / shape.kv_heads, queries = shape.q_tokens;
  parallel_pieces(args.pieces, queries, [&](int, std::int64_t begin, std::int64_t end) {
    for (int piece = 0; piece < args.pieces; ++piece) {
      if (!shares_first_group(args, piece)) continue;
      const std::int64_t group = args.starts[piece].group;
      const std::int64_t sequence = group / shape.kv_heads, kv_head = group % shape.kv_heads;
      const float* partial = args.partial + piece * partial_count(shape);
      for (std::int64_t i = 0; i < heads; ++i) {
        float* dq = row_of_head<float>(args.dq, sequence * queries + begin, kv_head * heads + i,
                                       shape.head_dim);
        add_rows(dq, args.dq.stride, partial + (i * queries + begin) * shape.head_dim,
                 shape.head_dim, end - begin, shape.head_dim);
      }
    }
  });
}

}  // namespace

std::int64_t attention_backward_scratch(const AttentionShape& shape) {
  TileMemory memory(nullptr);
  backward_tiles(memory, shape);
  return memory.bytes();
}

void attention_backward(const AttentionBackwardArgs& args) {
  parallel_pieces(args.pieces, args.pieces, [&](int piece, std::int64_t, std::int64_t) {
    if (args.shape.type == DType::kF32) return backward_piece<float>(args, piece);
    backward_piece<BFloat16>(args, piece);
  });
  if (args.partial != nullptr) add_partials(args);
}

}  // namespace trireme::TRIREME_ISA
