// Forward for a few queries over many keys (a key/value cache): one query at a time, from the
// caller's keys. Lanes run along the head; tiles would be mostly empty, copying keys costly.

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/attention_view.h"
#include "kernels/common/parallel.h"

namespace trireme::TRIREME_ISA {
namespace {

template <class T>
struct FewQuery {
  const AttentionForwardArgs& args;
  std::int64_t sequence, head, query;
  float* q;       // [whole vectors of D], times scale log2(e), then zeros
  float* scores;  // [keys that the query sees], one after the other

  [[nodiscard]] std::int64_t row() const { return sequence * args.shape.q_tokens + query; }
  [[nodiscard]] const T* kv_head(const AttentionHeads<const void>& from) const {
    const std::int64_t kv_head = head / (args.shape.heads / args.shape.kv_heads);
    return row_of_head<const T>(from, sequence * args.shape.kv_tokens, kv_head,
                                args.shape.head_dim);
  }
  /// body(first key, end) for each block, as far as the query sees it.
  template <class Body>
  TRIREME_INLINE void for_each_block(const Body& body) const {
    const AttentionVisibility& visibility = args.visibility;
    const std::int64_t first_key =
        visibility.first_key == nullptr ? 0 : visibility.first_key[row()];
    for (std::int64_t i = 0; i < visibility.key_block_count; ++i) {
      const AttentionKeyBlock& block = visibility.key_blocks[i];
      const KeySpan span = visible_keys(block, visibility.q_position[query], first_key);
      if (!span.empty()) body(block.index + span.low, block.index + span.high);
    }
  }

  void load_query() const {
    copy_rows({q, 0, 0, 1, args.shape.head_dim, args.scale * kLog2E},
              row_of_head<const T>(args.q, row(), head, args.shape.head_dim));
  }

  /// Returns how many keys the query sees.
  std::int64_t score() const {
    const T* k = kv_head(args.k);
    const std::int64_t head_dim = args.shape.head_dim;
    std::int64_t count = 0;
    for_each_block([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        const T* key = k + j * args.k.stride;
        F32 sum = F32::zero();
        for_each_vector(0, head_dim, [&](std::int64_t d, auto lanes) {
          sum = fma(F32::load(key + d, lanes), F32::load(q + d), sum);
        });
        scores[count++] = reduce_add(sum);
      }
    });
    return count;
  }

  /// Scores become probabilities times their sum, which is returned; *maximum in powers of 2.
  float softmax(std::int64_t count, float* maximum) const {
    const F32 lowest = F32::broadcast(-kAttentionInfinity);
    F32 best = lowest, sum = F32::zero();
    for_each_vector(0, count, [&](std::int64_t j, auto lanes) {
      best = max(select(lanes, F32::load(scores + j, lanes), lowest), best);
    });
    *maximum = reduce_max(best);
    const F32 subtract = F32::broadcast(*maximum == -kAttentionInfinity ? 0.0F : *maximum);
    for_each_vector(0, count, [&](std::int64_t j, auto lanes) {
      const F32 p = exp2(F32::load(scores + j, lanes) - subtract);
      p.store(scores + j, lanes);
      sum = sum + select(lanes, p, F32::zero());
    });
    return reduce_add(sum);
  }

  template <int kVectors, class Lanes>
  void combine(std::int64_t column, float inverse, Lanes lanes) const {
    const T* v = kv_head(args.v) + column;
    F32 sum[kVectors];
    for (int i = 0; i < kVectors; ++i) sum[i] = F32::zero();
    const float* p = scores;
    for_each_block([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        const F32 weight = F32::broadcast(*p++);
        const T* value = v + j * args.v.stride;
        for (int i = 0; i < kVectors; ++i)
          sum[i] = fma(weight, F32::load(value + i * F32::kWidth, lanes), sum[i]);
      }
    });
    T* o = row_of_head<T>(args.o, row(), head, args.shape.head_dim) + column;
    for (int i = 0; i < kVectors; ++i)
      (sum[i] * F32::broadcast(inverse)).store(o + i * F32::kWidth, lanes);
  }

  void run() const {
    load_query();
    float maximum = 0;
    const float sum = softmax(score(), &maximum);
    const float inverse = sum == 0 ? 0.0F : 1.0F / sum;
    const F32 lse = fma(F32::broadcast(maximum), F32::broadcast(kLn2), log(F32::broadcast(sum)));
    lse.store(args.lse + row() * args.shape.heads + head, Tail(1));
    if (sum == 0) args.lse[row() * args.shape.heads + head] = -kAttentionInfinity;
    const std::int64_t head_dim = args.shape.head_dim;
    std::int64_t column = 0;
    for (; column + 4 * F32::kWidth <= head_dim; column += 4 * F32::kWidth)
      combine<4>(column, inverse, Full{});
    for_each_vector(column, head_dim,
                    [&](std::int64_t d, auto lanes) { combine<1>(d, inverse, lanes); });
  }
};

template <class T>
void few_piece(const AttentionForwardArgs& args, int piece) {
  const AttentionShape& shape = args.shape;
  TileMemory memory(args.scratch + piece * attention_forward_scratch(shape));
  const FewQueryTiles tiles = few_query_tiles(memory, shape);
  const AttentionItem first = args.starts[piece], last = args.starts[piece + 1];
  const std::int64_t queries = shape.q_tokens;
  for (std::int64_t item = first.group * queries + first.block;
       item < last.group * queries + last.block; ++item) {
    const std::int64_t group = item / queries;
    FewQuery<T>{args,    group / shape.heads, group % shape.heads, item % queries,
                tiles.q, tiles.scores}
        .run();
  }
}

}  // namespace

void attention_forward_few(const AttentionForwardArgs& args) {
  parallel_pieces(args.pieces, args.pieces, [&](int piece, std::int64_t, std::int64_t) {
    if (args.shape.type == DType::kF32) return few_piece<float>(args, piece);
    few_piece<BFloat16>(args, piece);
  });
}

}  // namespace trireme::TRIREME_ISA
