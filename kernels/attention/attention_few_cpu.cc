// Forward for a few queries over many keys, whole sequences or a cache in pages: one at a time,
// from the caller's keys. Lanes run along the head; tiles would be mostly empty, copying keys
// costly.

#include "kernels/attention/attention_cpu.h"
#include "kernels/attention/attention_tile.h"
#include "kernels/attention/attention_view.h"
#include "kernels/common/parallel.h"

namespace trireme::TRIREME_ISA {
namespace {

/// A query of one head. `Keys` calls body(first row, end) for each run of the keys that it sees.
template <class T, class Keys>
struct FewQuery {
  std::int64_t head_dim, value_dim;
  const T* query;
  AttentionHeads<const T> k, v;  // of its key head
  T* o;
  float* lse;  // or null
  float scale;
  const Keys& keys;
  float* q;       // [whole vectors of D], times scale log2(e), then zeros
  float* scores;  // [keys that the query sees], one after the other

  void load_query() const { copy_rows({q, 0, 0, 1, head_dim, scale * kLog2E}, query); }

  /// Returns how many keys the query sees.
  std::int64_t score() const {
    std::int64_t count = 0;
    keys.each([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        const T* key = k.data + j * k.stride;
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
    F32 sum[kVectors];
    for (int i = 0; i < kVectors; ++i) sum[i] = F32::zero();
    const float* p = scores;
    keys.each([&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t j = begin; j < end; ++j) {
        const F32 weight = F32::broadcast(*p++);
        const T* value = v.data + j * v.stride + column;
        for (int i = 0; i < kVectors; ++i)
          sum[i] = fma(weight, F32::load(value + i * F32::kWidth, lanes), sum[i]);
      }
    });
    for (int i = 0; i < kVectors; ++i)
      (sum[i] * F32::broadcast(inverse)).store(o + column + i * F32::kWidth, lanes);
  }

  void run() const {
    load_query();
    float maximum = 0;
    const float sum = softmax(score(), &maximum);
    const float inverse = sum == 0 ? 0.0F : 1.0F / sum;
    if (lse != nullptr) {
      fma(F32::broadcast(maximum), F32::broadcast(kLn2), log(F32::broadcast(sum)))
          .store(lse, Tail(1));
      if (sum == 0) *lse = -kAttentionInfinity;
    }
    std::int64_t column = 0;
    for (; column + 4 * F32::kWidth <= value_dim; column += 4 * F32::kWidth)
      combine<4>(column, inverse, Full{});
    for_each_vector(column, value_dim,
                    [&](std::int64_t d, auto lanes) { combine<1>(d, inverse, lanes); });
  }
};

/// A token's row of one head, as a place to count rows from.
template <class T>
AttentionHeads<const T> head_of(const AttentionHeads<const void>& heads, std::int64_t token,
                                std::int64_t head, std::int64_t head_dim) {
  return {row_of_head<const T>(heads, token, head, head_dim), heads.stride};
}

/// Of a query among whole sequences: the part of each block that it sees.
struct BlockKeys {
  const AttentionVisibility& visibility;
  std::int64_t position, first_key;

  template <class Body>
  TRIREME_INLINE void each(const Body& body) const {
    for (std::int64_t i = 0; i < visibility.key_block_count; ++i) {
      const AttentionKeyBlock& block = visibility.key_blocks[i];
      const KeySpan span = visible_keys(block, position, first_key);
      if (!span.empty()) body(block.index + span.low, block.index + span.high);
    }
  }
};

template <class T>
void few_piece(const AttentionForwardArgs& args, int piece) {
  const AttentionShape& shape = args.shape;
  TileMemory memory(args.scratch + piece * attention_forward_scratch(shape));
  const FewQueryTiles tiles = few_query_tiles(memory, shape);
  const AttentionItem first = args.starts[piece], last = args.starts[piece + 1];
  const std::int64_t queries = shape.q_tokens, head_dim = shape.head_dim,
                     value_dim = shape.value_dim;
  for (std::int64_t item = first.group * queries + first.block;
       item < last.group * queries + last.block; ++item) {
    const std::int64_t group = item / queries, query = item % queries,
                       sequence = group / shape.heads, head = group % shape.heads;
    const std::int64_t row = sequence * queries + query, first_kv = sequence * shape.kv_tokens,
                       kv_head = head / (shape.heads / shape.kv_heads);
    const std::int32_t* first_key = args.visibility.first_key;
    const std::int64_t position = args.visibility.q_position[query];
    const BlockKeys keys{
        args.visibility, position,
        first_visible(first_key == nullptr ? 0 : first_key[row], position, args.visibility.reach)};
    FewQuery<T, BlockKeys>{head_dim,
                           value_dim,
                           row_of_head<const T>(args.q, row, head, head_dim),
                           head_of<T>(args.k, first_kv, kv_head, head_dim),
                           head_of<T>(args.v, first_kv, kv_head, value_dim),
                           row_of_head<T>(args.o, row, head, value_dim),
                           args.lse + row * shape.heads + head,
                           args.scale,
                           keys,
                           tiles.q,
                           tiles.scores}
        .run();
  }
}

/// The keys begin to end - 1 of a sequence in pages.
struct PagedKeys {
  const std::int32_t* pages;
  std::int64_t page, begin, end;

  template <class Body>
  TRIREME_INLINE void each(const Body& body) const {
    for (std::int64_t i = begin / page; i * page < end; ++i) {
      const std::int64_t row = std::int64_t{pages[i]} * page, first = i * page;
      body(row + (begin > first ? begin - first : 0),
           row + (end - first < page ? end - first : page));
    }
  }
};

template <class T>
void cached_piece(const AttentionCachedArgs& args, int piece) {
  TileMemory memory(args.scratch + piece * args.scratch_of_piece);
  float* const q = memory.take(whole_vectors(args.head_dim));
  float* const scores = memory.take(args.longest);
  const std::int64_t group = args.heads / args.kv_heads, head_dim = args.head_dim,
                     value_dim = args.value_dim;
  for (std::int64_t item = args.starts[piece]; item < args.starts[piece + 1]; ++item) {
    const std::int64_t row = item / args.kv_heads, kv_head = item % args.kv_heads;
    const std::int64_t position = args.position[row];
    const PagedKeys keys{args.pages + args.sequence[row] * args.pages_stride, args.page,
                         first_visible(0, position, args.reach), position + 1};
    for (std::int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
      FewQuery<T, PagedKeys>{head_dim,
                             value_dim,
                             row_of_head<const T>(args.q, row, head, head_dim),
                             head_of<T>(args.k, 0, kv_head, head_dim),
                             head_of<T>(args.v, 0, kv_head, value_dim),
                             row_of_head<T>(args.o, row, head, value_dim),
                             args.lse == nullptr ? nullptr : args.lse + row * args.heads + head,
                             args.scale,
                             keys,
                             q,
                             scores}
          .run();
    }
  }
}

}  // namespace

void attention_forward_few(const AttentionForwardArgs& args) {
  parallel_pieces(args.pieces, args.pieces, [&](int piece, std::int64_t, std::int64_t) {
    if (args.shape.type == DType::kF32) return few_piece<float>(args, piece);
    few_piece<BFloat16>(args, piece);
  });
}

std::int64_t attention_cached_scratch(std::int64_t head_dim, std::int64_t longest) {
  TileMemory memory(nullptr);
  memory.take(whole_vectors(head_dim));
  memory.take(longest);
  return memory.bytes();
}

void attention_cached(const AttentionCachedArgs& args) {
  parallel_pieces(args.pieces, args.pieces, [&](int piece, std::int64_t, std::int64_t) {
    if (args.type == DType::kF32) return cached_piece<float>(args, piece);
    cached_piece<BFloat16>(args, piece);
  });
}

}  // namespace trireme::TRIREME_ISA
