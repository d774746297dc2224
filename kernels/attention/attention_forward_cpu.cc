// Forward: a thread owns a block of queries of one head. Lanes are queries: scores are kept
// transposed, S^T[key][query] = K Q^T, so that the running maximum and sum of a query are its
// lane's and nothing is folded across lanes.

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/attention_view.h"
#include "kernels/common/parallel.h"
#include "kernels/common/tile_product.h"

namespace trireme::TRIREME_ISA {
namespace {

constexpr std::int64_t kQueries = kAttentionForwardQueries;
constexpr std::int64_t kPanelsMax = kQueries / kPanel;

struct ForwardTiles {
  std::int64_t stride, depth;
  float *k, *v;          // [64][stride]
  float* q_panels;       // [panel][depth][kPanel], times scale log2(e): scores are exponents of 2
  float* o;              // [128][stride]
  float* s;              // [64][kPanel]: scores, then probabilities of a panel
  float* rows;           // [kPanel][stride]
  float *maximum, *sum;  // [128], of the queries
  float* rescale;        // [kPanel]
  float *low, *high;     // [128]
};

ForwardTiles forward_tiles(TileMemory& memory, std::int64_t head_dim) {
  ForwardTiles t;
  t.stride = tile_stride(head_dim);
  t.depth = panel_depth(head_dim);
  t.k = memory.take(kAttentionBlock * t.stride);
  t.v = memory.take(kAttentionBlock * t.stride);
  t.q_panels = memory.take(kQueries * t.depth);
  t.o = memory.take(kQueries * t.stride);
  t.s = memory.take(kAttentionBlock * kPanel);
  t.rows = memory.take(kPanel * t.stride);
  t.maximum = memory.take(kQueries);
  t.sum = memory.take(kQueries);
  t.rescale = memory.take(kPanel);
  t.low = memory.take(kQueries);
  t.high = memory.take(kQueries);
  return t;
}

/// The queries of one item.
struct QueryBlock {
  std::int64_t sequence, head, kv_head, query, count;
};

/// Scores to probabilities in place; the panel's maximum and sum move on, `rescale` is what earlier
/// sums and outputs are multiplied with. Sums run over keys in ascending order, whatever other
/// queries see.
template <bool kMasked>
void softmax_panel(const ForwardTiles& t, std::int64_t panel, KeySpan span) {
  const std::int64_t base = panel * kPanel;
  for (std::int64_t lane = 0; lane < kPanel; lane += F32::kWidth) {
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
      p.store(s);
      sum = sum + p;
    }
    best.store(t.maximum + base + lane);
    sum.store(t.sum + base + lane);
    rescale.store(t.rescale + lane);
  }
}

void attend_panel(const ForwardTiles& t, std::int64_t panel, std::int64_t queries,
                  const BlockView& view, std::int64_t head_dim) {
  const KeySpan span = view.hull;
  const std::int64_t keys = span.high - span.low;
  Product scores{};
  scores.a = t.k + span.low * t.stride;
  scores.a_stride = t.stride;
  scores.b = t.q_panels + panel * t.depth * kPanel;
  scores.b_stride = kPanel;
  scores.c = t.s + span.low * kPanel;
  scores.c_stride = kPanel;
  scores.rows = keys;
  scores.columns = kPanel;
  scores.depth = head_dim;
  multiply<OperandA::kRows, Store::kSet>(scores);

  if (view.whole) {
    softmax_panel<false>(t, panel, span);
  } else {
    softmax_panel<true>(t, panel, span);
  }

  Product output{};
  output.a = scores.c;
  output.a_stride = kPanel;
  output.b = t.v + span.low * t.stride;
  output.b_stride = t.stride;
  output.c = t.o + panel * kPanel * t.stride;
  output.c_stride = t.stride;
  output.rows = queries;
  output.columns = whole_vectors(head_dim);
  output.depth = keys;
  output.row_scale = t.rescale;
  multiply<OperandA::kColumns, Store::kScaleAndAdd>(output);
}

template <class T>
struct ForwardBlock {
  const AttentionForwardArgs& args;
  const ForwardTiles& t;
  QueryBlock b;

  void load_queries() const {
    const AttentionShape& shape = args.shape;
    const std::int64_t row = b.sequence * shape.q_tokens + b.query;
    const T* q = static_cast<const T*>(args.q.data) + row * args.q.stride + b.head * shape.head_dim;
    for (std::int64_t i = 0; i < b.count; i += kPanel) {
      const std::int64_t rows = b.count - i < kPanel ? b.count - i : kPanel;
      // Lanes without a query compute on zeros; nothing of theirs is stored.
      if (rows < kPanel) clear_tile(t.rows, kPanel * t.stride);
      copy_rows({t.rows, t.stride, args.q.stride, rows, shape.head_dim, args.scale * kLog2E},
                q + i * args.q.stride);
      transpose_panel(t.q_panels + i * t.depth, t.rows, t.stride, shape.head_dim);
    }
    clear_tile(t.o, kQueries * t.stride);
    clear_tile(t.sum, kQueries);
    clear_tile(t.low, kQueries);
    clear_tile(t.high, kQueries);
    for (std::int64_t i = 0; i < kQueries; ++i) t.maximum[i] = -kAttentionInfinity;
  }

  void load_keys(const AttentionKeyBlock& block, KeySpan span) const {
    const AttentionShape& shape = args.shape;
    const std::int64_t row = b.sequence * shape.kv_tokens + block.index + span.low;
    const std::int64_t column = b.kv_head * shape.head_dim, rows = span.high - span.low;
    const T* k = static_cast<const T*>(args.k.data) + row * args.k.stride + column;
    const T* v = static_cast<const T*>(args.v.data) + row * args.v.stride + column;
    copy_rows({t.k + span.low * t.stride, t.stride, args.k.stride, rows, shape.head_dim, 1.0F}, k);
    copy_rows({t.v + span.low * t.stride, t.stride, args.v.stride, rows, shape.head_dim, 1.0F}, v);
  }

  void attend(const AttentionKeyBlock& block) const {
    const std::int64_t sequence_row = b.sequence * args.shape.q_tokens;
    BlockView views[kPanelsMax];
    KeySpan hull = {block.count, 0};
    for (std::int64_t i = 0; i < b.count; i += kPanel) {
      const std::int64_t queries = b.count - i < kPanel ? b.count - i : kPanel;
      BlockView& view = views[i / kPanel];
      view = view_block(args.visibility, block, sequence_row, b.query + i, queries, t.low + i,
                        t.high + i);
      if (view.hull.empty()) continue;
      hull.low = view.hull.low < hull.low ? view.hull.low : hull.low;
      hull.high = view.hull.high > hull.high ? view.hull.high : hull.high;
    }
    if (hull.empty()) return;
    load_keys(block, hull);
    for (std::int64_t i = 0; i < b.count; i += kPanel) {
      const std::int64_t queries = b.count - i < kPanel ? b.count - i : kPanel;
      if (views[i / kPanel].hull.empty()) continue;
      attend_panel(t, i / kPanel, queries, views[i / kPanel], args.shape.head_dim);
    }
  }

  void finish() const {
    const AttentionShape& shape = args.shape;
    for (std::int64_t i = 0; i < b.count; ++i) {
      const std::int64_t row = b.sequence * shape.q_tokens + b.query + i;
      T* o = static_cast<T*>(args.o.data) + row * args.o.stride + b.head * shape.head_dim;
      const float sum = t.sum[i];
      const F32 inverse = F32::broadcast(sum == 0 ? 0.0F : 1.0F / sum);
      for_each_vector(0, shape.head_dim, [&](std::int64_t d, auto lanes) {
        (F32::load(t.o + i * t.stride + d) * inverse).store(o + d, lanes);
      });
    }
    // In place: maximum becomes log-sum-exp.
    for (std::int64_t i = 0; i < kQueries; i += F32::kWidth) {
      const F32 m = F32::load(t.maximum + i), sum = F32::load(t.sum + i);
      const F32 lse = fma(m, F32::broadcast(kLn2), log(sum));
      select(sum == F32::zero(), F32::broadcast(-kAttentionInfinity), lse).store(t.maximum + i);
    }
    for (std::int64_t i = 0; i < b.count; ++i) {
      const std::int64_t row = b.sequence * shape.q_tokens + b.query + i;
      args.lse[row * shape.heads + b.head] = t.maximum[i];
    }
  }
};

template <class T>
void forward_piece(const AttentionForwardArgs& args, int piece) {
  const AttentionShape& shape = args.shape;
  TileMemory memory(args.scratch + piece * attention_forward_scratch(shape));
  const ForwardTiles tiles = forward_tiles(memory, shape.head_dim);
  const std::int64_t blocks = (shape.q_tokens + kQueries - 1) / kQueries;
  const AttentionItem first = args.starts[piece], last = args.starts[piece + 1];
  for (std::int64_t item = first.group * blocks + first.block;
       item < last.group * blocks + last.block; ++item) {
    const std::int64_t group = item / blocks, query = item % blocks * kQueries;
    const std::int64_t head = group % shape.heads, left = shape.q_tokens - query;
    const ForwardBlock<T> block = {
        args,
        tiles,
        {group / shape.heads, head, head / (shape.heads / shape.kv_heads), query,
         left < kQueries ? left : kQueries}};
    block.load_queries();
    for (std::int64_t j = 0; j < args.visibility.key_block_count; ++j)
      block.attend(args.visibility.key_blocks[j]);
    block.finish();
  }
}

}  // namespace

std::int64_t attention_forward_scratch(const AttentionShape& shape) {
  TileMemory tiles(nullptr), few(nullptr);
  forward_tiles(tiles, shape.head_dim);
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
