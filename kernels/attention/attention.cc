#include "kernels/attention/attention.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/math.h"
#include "kernels/attention/attention_gpu_table.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme {

using namespace attention_internal;

namespace {

/// Up to this many queries are computed one by one (a key/value cache) rather than in tiles.
constexpr std::int64_t kFewQueries = 4;
/// Below this many (query, key) pairs times head size another thread costs more than it saves.
constexpr std::int64_t kWorkPerThreadMin = 32768;
constexpr std::int64_t kHeadDimMax = 256, kCachedHeadDimMax = 1024;

const AttentionKernels& table(const Context& context) {
  return choose_by_isa(context, attention_cpu);
}

const AttentionBackend& backend(const Context& context) {
  const AttentionBackend* const chosen = context.attention_backend();
  return chosen == nullptr ? own_attention : *chosen;
}

std::int64_t token_count(const ArgumentChecker& check, const char* name,
                         std::span<const PositionRange> ranges) {
  std::int64_t count = 0;
  for (const PositionRange& range : ranges) {
    const bool fits = range.first >= 0 && range.count >= 0 &&
                      range.first <= std::numeric_limits<std::int32_t>::max() - range.count;
    check.that(fits, name, "a range is negative or ends beyond 2^31 - 1");
    count += range.count;
  }
  return count;
}

void check_values(const ArgumentChecker& check, const ConstHeadsView& q, const ConstHeadsView& v) {
  check.that(v.head_dim > 0 && v.head_dim <= q.head_dim && v.head_dim % 2 == 0, "v",
             "the size of its heads must be even and from 2 to that of q's");
}

/// What all calls share; fills sizes and checks q, k, v and the mask.
AttentionShape check_common(const ArgumentChecker& check, const ConstHeadsView& q,
                            const ConstHeadsView& k, const ConstHeadsView& v,
                            const AttentionMask& mask) {
  check.floating("q", q.dtype);
  check.that(mask.sequences >= 0, "mask.sequences", "negative");
  check.that(mask.window >= 0, "mask.window", "negative");
  check.that(q.head_dim > 0 && q.head_dim <= kHeadDimMax && q.head_dim % 2 == 0, "q",
             "the head size must be even and from 2 to 256");
  check.that(q.heads > 0 && k.heads > 0 && q.heads % k.heads == 0, "k",
             "the number of query heads must be a multiple of the number of KV heads");
  check_values(check, q, v);
  const AttentionShape shape = {mask.sequences,
                                token_count(check, "mask.q", mask.q),
                                token_count(check, "mask.kv", mask.kv),
                                q.heads,
                                k.heads,
                                q.head_dim,
                                v.head_dim,
                                q.dtype};
  const std::int64_t q_rows = shape.sequences * shape.q_tokens,
                     kv_rows = shape.sequences * shape.kv_tokens;
  check.heads("q", q, q.dtype, {q_rows, shape.heads, shape.head_dim});
  check.heads("k", k, q.dtype, {kv_rows, shape.kv_heads, shape.head_dim});
  check.heads("v", v, q.dtype, {kv_rows, shape.kv_heads, shape.value_dim});
  check.optional("mask.first_key", mask.first_key_T, DType::kI32, {q_rows});
  return shape;
}

/// The parts of a call's scratch area, each aligned to 64 bytes.
class ScratchPlan {
 public:
  std::size_t take(std::int64_t bytes) {
    const std::size_t offset = bytes_;
    bytes_ += static_cast<std::size_t>(round_up(bytes, 64));
    return offset;
  }
  [[nodiscard]] std::size_t bytes() const { return bytes_; }

 private:
  std::size_t bytes_ = 0;
};

std::int64_t block_count(std::span<const PositionRange> ranges) {
  std::int64_t count = 0;
  for (const PositionRange& range : ranges) count += ceil_div(range.count, kAttentionBlock);
  return count;
}

void write_key_blocks(std::span<const PositionRange> ranges, AttentionKeyBlock* blocks) {
  std::int64_t index = 0;
  for (const PositionRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; i += kAttentionBlock) {
      const std::int64_t count = std::min(kAttentionBlock, range.count - i);
      *blocks++ = {index, count, range.first + i};
      index += count;
    }
  }
}

void write_positions(std::span<const PositionRange> ranges, std::int64_t* positions) {
  for (const PositionRange& range : ranges) {
    for (std::int64_t i = 0; i < range.count; ++i) *positions++ = range.first + i;
  }
}

/// Tiles (a block of queries x 64 keys) count 4 where all pairs are visible, 3 where some are, 0
/// where none is. Documents are not looked at: they only make work less.
std::int64_t tile_cost(std::int64_t lowest_position, std::int64_t highest_position,
                       const AttentionKeyBlock& block, std::int64_t reach) {
  const std::int64_t last_key = block.position + block.count - 1;
  if (highest_position < block.position || lowest_position - reach > last_key) return 0;
  return lowest_position >= last_key && highest_position - reach <= block.position ? 4 : 3;
}

enum class CostOf : std::uint8_t { kQueryBlocks, kKeyBlocks };

/// costs[i] = the cost of the blocks of a group before block i.
void write_costs(const AttentionShape& shape, const AttentionVisibility& visibility, CostOf of,
                 std::int64_t* costs) {
  const std::int64_t queries =
      of == CostOf::kQueryBlocks ? kAttentionForwardQueries : kAttentionBlock;
  const std::int64_t query_blocks = ceil_div(shape.q_tokens, queries);
  const std::int64_t blocks =
      of == CostOf::kQueryBlocks ? query_blocks : visibility.key_block_count;
  std::fill_n(costs, blocks + 1, 1);  // an item is never free
  for (std::int64_t i = 0; i < query_blocks; ++i) {
    const std::int64_t query = i * queries, count = std::min(queries, shape.q_tokens - query);
    const std::int64_t* positions = visibility.q_position + query;
    const auto [lowest, highest] = std::minmax_element(positions, positions + count);
    for (std::int64_t j = 0; j < visibility.key_block_count; ++j) {
      const std::int64_t cost =
          tile_cost(*lowest, *highest, visibility.key_blocks[j], visibility.reach);
      costs[(of == CostOf::kQueryBlocks ? i : j) + 1] += cost;
    }
  }
  costs[0] = 0;
  for (std::int64_t i = 0; i < blocks; ++i) costs[i + 1] += costs[i];
}

/// Cuts groups * blocks items, in order, into pieces of nearly equal cost.
void write_starts(std::int64_t groups, std::int64_t blocks, const std::int64_t* costs, int pieces,
                  AttentionItem* starts) {
  const std::int64_t group_cost = costs[blocks];
  for (int piece = 0; piece <= pieces; ++piece) {
    const std::int64_t cost = groups * group_cost * piece / pieces;
    const std::int64_t group = cost / group_cost;
    // The block boundary nearest to the wanted cost; a group ends where the next begins.
    const std::int64_t rest = cost - group * group_cost;
    const std::int64_t* after = std::lower_bound(costs, costs + blocks + 1, rest);
    std::int64_t block = after - costs;
    if (block > 0 && rest - costs[block - 1] < costs[block] - rest) --block;
    starts[piece] = block == blocks ? AttentionItem{group + 1, 0} : AttentionItem{group, block};
  }
}

int piece_count(const Context& context, std::int64_t items, std::int64_t work) {
  const std::int64_t by_work = std::max<std::int64_t>(1, work / kWorkPerThreadMin);
  return static_cast<int>(std::min({static_cast<std::int64_t>(context.threads()), items, by_work}));
}

/// Offsets of what both directions keep in scratch.
struct CommonPlan {
  std::size_t positions, key_blocks, costs, starts;
};
CommonPlan plan_common(ScratchPlan& plan, const AttentionShape& shape, std::int64_t key_blocks,
                       std::int64_t blocks, int pieces) {
  return {plan.take(shape.q_tokens * 8),
          plan.take(key_blocks * static_cast<std::int64_t>(sizeof(AttentionKeyBlock))),
          plan.take((blocks + 1) * 8),
          plan.take((pieces + 1) * static_cast<std::int64_t>(sizeof(AttentionItem)))};
}

AttentionVisibility write_visibility(std::byte* scratch, const CommonPlan& plan,
                                     const AttentionMask& mask) {
  auto* positions = reinterpret_cast<std::int64_t*>(scratch + plan.positions);
  auto* key_blocks = reinterpret_cast<AttentionKeyBlock*>(scratch + plan.key_blocks);
  write_positions(mask.q, positions);
  write_key_blocks(mask.kv, key_blocks);
  return {positions, key_blocks, block_count(mask.kv), first_key_of(mask), reach_of(mask.window)};
}

void check_dropout(const ArgumentChecker& check, const AttentionDropout& dropout,
                   std::int64_t sequences) {
  check.that(dropout.share >= 0 && dropout.share < 1 && dropout.first_head >= 0, "dropout",
             "of no share from 0 to below 1, or from a negative head on");
  if (dropout.share == 0) return;
  check.rank("dropout.numbers", dropout.numbers_R2, 2);
  const std::int64_t rows = dropout.numbers_R2.shape[0];
  check.tensor("dropout.numbers", dropout.numbers_R2, DType::kI32, {rows, 2});
  check.that(sequences == 0 || (rows > 0 && rows % sequences == 0), "dropout.numbers",
             "the number of rows must be a multiple of that of sequences");
}

AttentionShape check_forward(const AttentionForward& args) {
  const ArgumentChecker check("attention_forward");
  const AttentionShape shape = check_common(check, args.q, args.k, args.v, args.mask);
  const std::int64_t rows = shape.sequences * shape.q_tokens;
  check.heads("o", args.o, shape.type, {rows, shape.heads, shape.value_dim});
  check.tensor("lse", args.lse_TH, DType::kF32, {rows, shape.heads});
  check.that(args.scale > 0, "scale", "must be positive");
  const std::int64_t columns = shape.heads * shape.value_dim;
  quantize_internal::check_output("attention_forward", args.quantized, {shape.type, rows, columns});
  const bool wanted = args.quantized.codes.given() || args.quantized.amax_P.given();
  check.that(!wanted || args.o.token_stride == columns, "o", "has columns that are no head's");
  check_dropout(check, args.dropout, shape.sequences);
  return shape;
}

AttentionShape check_backward(const AttentionBackward& args) {
  const ArgumentChecker check("attention_backward");
  const AttentionShape shape = check_common(check, args.q, args.k, args.v, args.mask);
  const std::int64_t q_rows = shape.sequences * shape.q_tokens,
                     kv_rows = shape.sequences * shape.kv_tokens;
  check.heads("d_o", args.d_o, shape.type, {q_rows, shape.heads, shape.value_dim});
  check.heads("dq", args.dq, DType::kF32, {q_rows, shape.heads, shape.head_dim});
  check.heads("dk", args.dk, DType::kF32, {kv_rows, shape.kv_heads, shape.head_dim});
  check.heads("dv", args.dv, DType::kF32, {kv_rows, shape.kv_heads, shape.value_dim});
  check.tensor("lse", args.lse_TH, DType::kF32, {q_rows, shape.heads});
  check.tensor("delta", args.delta_TH, DType::kF32, {q_rows, shape.heads});
  check.that(args.scale > 0, "scale", "must be positive");
  if (args.o.data != nullptr)
    check.heads("o", args.o, shape.type, {q_rows, shape.heads, shape.value_dim});
  if (args.written.given()) {
    check.heads("written.dq", args.written.dq, shape.type, {q_rows, shape.heads, shape.head_dim});
    check.heads("written.dk", args.written.dk, shape.type,
                {kv_rows, shape.kv_heads, shape.head_dim});
    check.heads("written.dv", args.written.dv, shape.type,
                {kv_rows, shape.kv_heads, shape.value_dim});
  }
  check_dropout(check, args.dropout, shape.sequences);
  return shape;
}

/// The visible (query, key) pairs of one head, over all sequences. A GPU's documents do not count.
std::int64_t visible_pairs(const Context& context, const AttentionMask& mask) {
  const std::int32_t* first_key = context.on_gpu() ? nullptr : first_key_of(mask);
  std::int64_t pairs = 0, row = 0;
  for (std::int64_t sequence = 0; sequence < mask.sequences; ++sequence) {
    for (const PositionRange& q : mask.q) {
      for (std::int64_t p = q.first; p < q.first + q.count; ++p, ++row) {
        const std::int64_t first = std::max<std::int64_t>(first_key == nullptr ? 0 : first_key[row],
                                                          p - reach_of(mask.window));
        for (const PositionRange& kv : mask.kv) {
          const std::int64_t begin = std::max(first, kv.first),
                             end = std::min(p + 1, kv.first + kv.count);
          pairs += std::max<std::int64_t>(0, end - begin);
        }
      }
    }
  }
  return pairs;
}

/// For each visible pair and query head 2 D + 2 Dv operations forward (S, O) and 6 D + 4 Dv
/// backward (S again, dQ, dK; dP, dV), counted as f32 whatever the operands. Without a trace
/// nothing is counted.
OpWork work_of(const Context& context, const AttentionForward& args) {
  if (context.op_trace() == nullptr) return {};
  return {visible_pairs(context, args.mask) * args.q.heads *
              (2 * args.q.head_dim + 2 * args.v.head_dim),
          bytes_of(args.o, args.lse_TH, args.q, args.k, args.v)};
}
OpWork work_of(const Context& context, const AttentionBackward& args) {
  if (context.op_trace() == nullptr) return {};
  const auto& [dq, dk, dv] = args.written;
  const std::int64_t gradients =
      args.written.given() ? bytes_of(dq, dk, dv) : 2 * bytes_of(args.dq, args.dk, args.dv);
  return {visible_pairs(context, args.mask) * args.q.heads *
              (6 * args.q.head_dim + 4 * args.v.head_dim),
          gradients + bytes_of(args.d_o, args.q, args.k, args.v, args.lse_TH, args.delta_TH)};
}

}  // namespace

AttentionDropping attention_internal::dropping_of(const AttentionDropout& dropout,
                                                  std::int64_t sequences) {
  constexpr std::int64_t kAll = 1 << 16;
  const std::int64_t dropped = std::min<std::int64_t>(std::llround(dropout.share * kAll), kAll - 1);
  if (dropped == 0) return {};
  return {dropout.key,
          reinterpret_cast<const std::uint32_t*>(dropout.numbers_R2.data),
          dropout.numbers_R2.shape[0] / sequences * 2,
          static_cast<std::uint32_t>(dropout.first_head),
          static_cast<std::uint32_t>(dropped),
          static_cast<float>(static_cast<double>(kAll) / static_cast<double>(kAll - dropped))};
}

void attention_internal::refuse_written(const AttentionBackward& args) {
  ArgumentChecker("attention_backward")
      .that(!args.written.given(), "written",
            "given, where gradients are added (attention_backward_writes)");
}

void leave_quantized(Context& context, const QuantizedOutput& quantized, const ConstHeadsView& o) {
  leave_quantized(context, quantized,
                  ConstTensorView{o.data, o.dtype, {o.tokens, o.heads * o.head_dim}});
}

void attention_internal::forward_by(const AttentionBackend& backend, Context& context,
                                    const AttentionShape& shape, const AttentionForward& args) {
  if (!backend.forward(context, shape, args)) leave_quantized(context, args.quantized, args.o);
}

void attention_forward(Context& context, const AttentionForward& args) {
  const AttentionShape shape = check_forward(args);
  const OpSpan span(context.op_trace(), "attention_forward", work_of(context, args));
  const std::int64_t groups = shape.sequences * shape.heads;
  if (groups * shape.q_tokens == 0) return;
  if (context.on_gpu()) return forward_by(backend(context), context, shape, args);
  const AttentionDropping dropping = dropping_of(args.dropout, shape.sequences);
  const bool few = shape.q_tokens <= kFewQueries && !dropping.drops();
  const std::int64_t key_blocks = block_count(args.mask.kv);
  const std::int64_t blocks =
      few ? shape.q_tokens : ceil_div(shape.q_tokens, kAttentionForwardQueries);
  const int pieces = piece_count(context, groups * blocks,
                                 groups * shape.q_tokens * shape.kv_tokens * shape.head_dim);
  const AttentionKernels& kernels = table(context);
  const std::int64_t piece_bytes = kernels.forward_scratch(shape);

  ScratchPlan plan;
  const CommonPlan common = plan_common(plan, shape, key_blocks, blocks, pieces);
  const std::size_t tiles = plan.take(piece_bytes * pieces);
  std::byte* scratch = context.scratch(plan.bytes());
  const AttentionVisibility visibility = write_visibility(scratch, common, args.mask);
  auto* costs = reinterpret_cast<std::int64_t*>(scratch + common.costs);
  auto* starts = reinterpret_cast<AttentionItem*>(scratch + common.starts);
  if (few) {
    for (std::int64_t i = 0; i <= blocks; ++i) costs[i] = i;
  } else {
    write_costs(shape, visibility, CostOf::kQueryBlocks, costs);
  }
  write_starts(groups, blocks, costs, pieces, starts);
  (few ? kernels.forward_few : kernels.forward)(
      {shape, visibility, plain(args.o), args.lse_TH.as<float>(), plain(args.q), plain(args.k),
       plain(args.v), args.scale, starts, pieces, scratch + tiles, dropping});
  leave_quantized(context, args.quantized, args.o);
}

void attention_backward(Context& context, const AttentionBackward& args) {
  const AttentionShape shape = check_backward(args);
  const OpSpan span(context.op_trace(), "attention_backward", work_of(context, args));
  const std::int64_t groups = shape.sequences * shape.kv_heads,
                     key_blocks = block_count(args.mask.kv);
  if (groups * shape.q_tokens == 0 || key_blocks == 0) return;
  if (context.on_gpu()) return backend(context).backward(context, shape, args);
  refuse_written(args);
  const std::int64_t work =
      shape.sequences * shape.heads * shape.q_tokens * shape.kv_tokens * shape.head_dim;
  const int pieces = piece_count(context, groups * key_blocks, work);
  const AttentionKernels& kernels = table(context);
  const std::int64_t piece_bytes = kernels.backward_scratch(shape);
  // Where the groups divide evenly among the pieces, no piece begins inside a group.
  const bool shared = groups % pieces != 0;
  const std::int64_t partial_bytes =
      shared ? pieces * (shape.heads / shape.kv_heads) * shape.q_tokens * shape.head_dim * 4 : 0;

  ScratchPlan plan;
  const CommonPlan common = plan_common(plan, shape, key_blocks, key_blocks, pieces);
  const std::size_t tiles = plan.take(piece_bytes * pieces), partial = plan.take(partial_bytes);
  std::byte* scratch = context.scratch(plan.bytes());
  const AttentionVisibility visibility = write_visibility(scratch, common, args.mask);
  auto* costs = reinterpret_cast<std::int64_t*>(scratch + common.costs);
  auto* starts = reinterpret_cast<AttentionItem*>(scratch + common.starts);
  write_costs(shape, visibility, CostOf::kKeyBlocks, costs);
  write_starts(groups, key_blocks, costs, pieces, starts);
  kernels.backward({shape, visibility, plain_f32(args.dq), plain_f32(args.dk), plain_f32(args.dv),
                    plain(args.d_o), plain(args.q), plain(args.k), plain(args.v),
                    args.lse_TH.as<float>(), args.delta_TH.as<float>(), args.scale, starts, pieces,
                    scratch + tiles, shared ? reinterpret_cast<float*>(scratch + partial) : nullptr,
                    dropping_of(args.dropout, shape.sequences)});
}

AttentionWrites attention_backward_writes(Context& context, const AttentionBackward& args) {
  const AttentionShape shape = check_backward(args);
  const bool nothing = shape.sequences * shape.q_tokens * shape.kv_tokens == 0;
  if (!context.on_gpu() || !args.written.given() || nothing) return AttentionWrites::kNo;
  return backend(context).writes(context, shape, args);
}

namespace {

/// Of a piece's items: rows cost what they see.
void write_starts(const CachedAttention& args, std::int64_t kv_heads, int pieces,
                  std::int64_t* starts) {
  const auto* position = args.position_T.as<std::int32_t>();
  const std::int64_t rows = args.position_T.count(), reach = reach_of(args.window);
  const auto keys_of = [&](std::int64_t t) {
    return std::min<std::int64_t>(position[t], reach) + 1;
  };
  std::int64_t total = 0, before = 0, row = 0;
  for (std::int64_t t = 0; t < rows; ++t) total += keys_of(t) * kv_heads;
  for (int piece = 0; piece < pieces; ++piece) {
    const std::int64_t cost = total * piece / pieces;
    const auto of_row = [&] { return keys_of(row) * kv_heads; };
    for (; before + of_row() <= cost; ++row) before += of_row();
    starts[piece] = row * kv_heads + (cost - before) / keys_of(row);
  }
  starts[pieces] = rows * kv_heads;
}

}  // namespace

void attention_cached(Context& context, const CachedAttention& args) {
  const ArgumentChecker check("attention_cached");
  const ConstHeadsView &q = args.q, &k = args.k;
  check.floating("q", q.dtype);
  check.that(q.head_dim > 0 && q.head_dim <= kCachedHeadDimMax && q.head_dim % 2 == 0, "q",
             "the head size must be even and from 2 to 1024");
  check.that(q.heads > 0 && k.heads > 0 && q.heads % k.heads == 0, "k",
             "the number of query heads must be a multiple of the number of KV heads");
  const std::int64_t value_dim = args.v.head_dim;
  check_values(check, q, args.v);
  check.heads("k", k, q.dtype, {k.tokens, k.heads, q.head_dim});
  check.heads("v", args.v, q.dtype, {k.tokens, k.heads, value_dim});
  check.heads("o", args.o, q.dtype, {q.tokens, q.heads, value_dim});
  check.rank("pages", args.pages_SP, 2);
  check.tensor("pages", args.pages_SP, DType::kI32, args.pages_SP.shape);
  check.tensor("sequence", args.sequence_T, DType::kI32, {q.tokens});
  check.tensor("position", args.position_T, DType::kI32, {q.tokens});
  check.that(args.longest > 0 && args.longest <= args.pages_SP.shape[1] * kAttentionPage, "longest",
             "must be at least 1 and fit into a sequence's pages");
  check.that(args.scale > 0, "scale", "must be positive");
  check.that(args.window >= 0, "window", "negative");
  check.optional("lse", args.lse_TH, DType::kF32, {q.tokens, q.heads});
  const std::int64_t most =
      args.window == 0 ? args.longest : std::min(args.longest, args.window);  // keys of a row
  const OpSpan span(context.op_trace(), "attention_cached",
                    {2 * q.tokens * most * q.heads * (q.head_dim + value_dim),
                     bytes_of(args.o, q) + q.tokens * most * k.heads * (q.head_dim + value_dim) *
                                               static_cast<std::int64_t>(size_of(q.dtype))});
  if (q.tokens == 0) return;
  AttentionCachedArgs call{context.exec(),
                           q.tokens,
                           q.heads,
                           k.heads,
                           q.head_dim,
                           value_dim,
                           q.dtype,
                           plain(args.o),
                           args.lse_TH.as<float>(),
                           plain(q),
                           plain(k),
                           plain(args.v),
                           args.pages_SP.as<std::int32_t>(),
                           args.sequence_T.as<std::int32_t>(),
                           args.position_T.as<std::int32_t>(),
                           args.pages_SP.shape[1],
                           kAttentionPage,
                           args.scale,
                           reach_of(args.window),
                           most};
  if (context.on_gpu()) return gpu_table("attention", &GpuKernels::attention).cached(call);
  const std::int64_t items = q.tokens * k.heads;
  call.pieces = piece_count(context, items, q.tokens * most * q.heads * q.head_dim);
  const AttentionKernels& kernels = table(context);
  call.scratch_of_piece = kernels.cached_scratch(q.head_dim, most);
  ScratchPlan plan;
  const std::size_t starts = plan.take((call.pieces + 1) * 8),
                    tiles = plan.take(call.scratch_of_piece * call.pieces);
  std::byte* scratch = context.scratch(plan.bytes());
  auto* const of_piece = reinterpret_cast<std::int64_t*>(scratch + starts);
  write_starts(args, k.heads, call.pieces, of_piece);
  call.starts = of_piece;
  call.scratch = scratch + tiles;
  kernels.cached(call);
}

void attention_merge(Context& context, HeadsView o, TensorView lse_TH, ConstHeadsView o2,
                     ConstTensorView lse2_TH) {
  const OpSpan span(context.op_trace(), "attention_merge", {0, bytes_of(o, o, o2)});
  const ArgumentChecker check("attention_merge");
  check.floating("o", o.dtype);
  check.heads("o", o, o.dtype, {o.tokens, o.heads, o.head_dim});
  check.heads("o2", o2, o.dtype, {o.tokens, o.heads, o.head_dim});
  check.tensor("lse", lse_TH, DType::kF32, {o.tokens, o.heads});
  check.tensor("lse2", lse2_TH, DType::kF32, {o.tokens, o.heads});
  AttentionRowsArgs rows{context.exec(), o.tokens, o.heads, o.head_dim, o.dtype, plain(o),
                         plain(o2),      {},       nullptr, nullptr,    nullptr};
  rows.lse = lse_TH.as<float>();
  rows.lse2 = lse2_TH.as<float>();
  context.on_gpu() ? gpu_table("attention", &GpuKernels::attention).merge(rows)
                   : table(context).merge(rows);
}

void attention_delta(Context& context, TensorView delta_TH, ConstHeadsView d_o, ConstHeadsView o) {
  const OpSpan span(context.op_trace(), "attention_delta", {0, bytes_of(d_o, o)});
  const ArgumentChecker check("attention_delta");
  check.floating("o", o.dtype);
  check.heads("o", o, o.dtype, {o.tokens, o.heads, o.head_dim});
  check.heads("d_o", d_o, o.dtype, {o.tokens, o.heads, o.head_dim});
  check.tensor("delta", delta_TH, DType::kF32, {o.tokens, o.heads});
  AttentionRowsArgs rows{context.exec(), o.tokens,   o.heads, o.head_dim, o.dtype, {},
                         plain(o),       plain(d_o), nullptr, nullptr,    nullptr};
  rows.delta = delta_TH.as<float>();
  context.on_gpu() ? gpu_table("attention", &GpuKernels::attention).delta(rows)
                   : table(context).delta(rows);
}

void attention_sinks(Context& context, HeadsView o, TensorView lse_TH, ConstTensorView sink_H) {
  const OpSpan span(context.op_trace(), "attention_sinks", {0, bytes_of(o, o)});
  const ArgumentChecker check("attention_sinks");
  check.floating("o", o.dtype);
  check.heads("o", o, o.dtype, {o.tokens, o.heads, o.head_dim});
  check.tensor("lse", lse_TH, DType::kF32, {o.tokens, o.heads});
  check.tensor("sink", sink_H, o.dtype, {o.heads});
  if (o.tokens == 0) return;
  AttentionSinksArgs call{};
  call.exec = context.exec();
  call.tokens = o.tokens;
  call.heads = o.heads;
  call.head_dim = o.head_dim;
  call.type = o.dtype;
  call.o = plain(o);
  call.sink = sink_H.data;
  call.joined_lse = lse_TH.as<float>();
  context.on_gpu() ? gpu_table("attention", &GpuKernels::attention).sinks(call)
                   : table(context).sinks(call);
}

void attention_sink_terms(Context& context, TensorView terms_TH, ConstTensorView sink_H,
                          ConstTensorView lse_TH, ConstTensorView delta_TH) {
  const OpSpan span(context.op_trace(), "attention_sink_terms",
                    {0, bytes_of(terms_TH, lse_TH, delta_TH)});
  const ArgumentChecker check("attention_sink_terms");
  check.rank("sink", sink_H, 1);
  check.floating("sink", sink_H.dtype);
  check.tensor("sink", sink_H, sink_H.dtype, sink_H.shape);
  check.rank("lse", lse_TH, 2);
  const std::int64_t tokens = lse_TH.shape[0], heads = sink_H.count();
  check.tensor("lse", lse_TH, DType::kF32, {tokens, heads});
  check.tensor("delta", delta_TH, DType::kF32, {tokens, heads});
  check.tensor("terms", terms_TH, DType::kF32, {tokens, heads});
  check.disjoint("terms", terms_TH, "lse", lse_TH);
  check.disjoint("terms", terms_TH, "delta", delta_TH);
  if (tokens == 0) return;
  AttentionSinksArgs call{};
  call.exec = context.exec();
  call.tokens = tokens;
  call.heads = heads;
  call.head_dim = 1;
  call.type = sink_H.dtype;
  call.sink = sink_H.data;
  call.lse = lse_TH.as<float>();
  call.delta = delta_TH.as<float>();
  call.terms = terms_TH.as<float>();
  context.on_gpu() ? gpu_table("attention", &GpuKernels::attention).sink_terms(call)
                   : table(context).sink_terms(call);
}

}  // namespace trireme
