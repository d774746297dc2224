#include "parallel/context_axis.h"

#include <utility>

#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// Keys and values side by side in one row.
struct KvHeads {
  HeadsView k, v;
};
KvHeads kv_heads(const TensorView& rows, const ContextShape& shape) {
  return {heads_of(rows, 0, shape.kv_heads, shape.head_dim),
          heads_of(rows, shape.kv_heads * shape.head_dim, shape.kv_heads, shape.value_dim)};
}

/// Heads [first, first + count).
template <class Byte>
BasicHeadsView<Byte> some_heads(BasicHeadsView<Byte> view, std::int64_t first, std::int64_t count) {
  view.data += static_cast<std::size_t>(first * view.head_dim) * size_of(view.dtype);
  view.heads = count;
  return view;
}

/// What rank j computes with ulysses: `q` query heads from j * q on, `kv` heads from `first_kv`.
struct HeadShare {
  std::int64_t q, kv;
  const ContextShape& shape;
  HeadShare(const ContextShape& s, int extent)
      : q(s.heads / extent), kv(std::max<std::int64_t>(1, s.kv_heads / extent)), shape(s) {}
  [[nodiscard]] std::int64_t first_kv(int rank) const {
    return rank * q / (shape.heads / shape.kv_heads);
  }
  [[nodiscard]] std::int64_t columns() const {
    return (q + kv) * shape.head_dim + kv * shape.value_dim;
  }
  [[nodiscard]] std::int64_t o_columns() const { return q * shape.value_dim; }
};

struct QkvHeads {
  HeadsView q, k, v;
};
QkvHeads qkv_heads(const TensorView& rows, const HeadShare& share) {
  const std::int64_t d = share.shape.head_dim;
  return {heads_of(rows, 0, share.q, d), heads_of(rows, share.q * d, share.kv, d),
          heads_of(rows, (share.q + share.kv) * d, share.kv, share.shape.value_dim)};
}

}  // namespace

void AttentionSinks::backward(Context& context, const AttentionBackward& args) const {
  attention_sink_terms(context, terms_TH, sink_H, args.lse_TH, args.delta_TH);
  column_sum(context, dsink_H, terms_TH);
}

std::vector<PositionRange> context_ranges(std::int64_t tokens, AxisRank rank) {
  if (rank.extent == 1) return {{0, tokens}};
  const std::int64_t chunk = div_exact(tokens, 2 * std::int64_t{rank.extent});
  return {{rank.index * chunk, chunk}, {(2 * rank.extent - 1 - rank.index) * chunk, chunk}};
}

ContextAxis::ContextAxis(Communicator& channel, ContextMethod method, std::int64_t sequence_tokens)
    : channel_(&channel), method_(method), rank_{channel.size(), channel.rank()} {
  if (rank_.extent == 1) return;
  for (int i = 0; i < rank_.extent; ++i) {
    const auto ranges = context_ranges(sequence_tokens, {rank_.extent, i});
    ranges_.insert(ranges_.end(), ranges.begin(), ranges.end());
  }
}

std::span<const PositionRange> ContextAxis::own(std::int64_t tokens) {
  if (rank_.extent > 1) return ranges_of(rank_.index);
  alone_ = {0, tokens};
  return {&alone_, 1};
}

ContextAxis::Buffers ContextAxis::lay_out(ArenaCursor& arena, const ContextShape& shape, int extent,
                                          ContextMethod method, Direction direction) {
  Buffers buffers;
  buffers.shape = shape;
  if (extent == 1) return buffers;
  const std::int64_t rows = shape.sequences * shape.tokens, all = rows * extent;
  const std::int64_t kv = shape.kv_heads * (shape.head_dim + shape.value_dim);
  const bool backward = direction == Direction::kBackward;
  if (method == ContextMethod::kUlysses) {
    const HeadShare share(shape, extent);
    buffers.sent = arena.take(shape.compute, {all, share.columns()});
    buffers.received = arena.take(shape.compute, {all, share.columns()});
    buffers.o_sent = arena.take(shape.compute, {all, share.o_columns()});
    buffers.o_received = arena.take(shape.compute, {all, share.o_columns()});
    buffers.first_key = arena.take(DType::kI32, {all});
    if (!backward) return buffers;
    buffers.delta_sent = arena.take(DType::kF32, {all, share.q});
    buffers.delta = arena.take(DType::kF32, {all, share.q});
    buffers.gradient = arena.take(DType::kF32, {all, share.columns()});
    buffers.gradient_received = arena.take(DType::kF32, {all, share.columns()});
    return buffers;
  }
  if (method == ContextMethod::kRing) {
    for (TensorView& block : buffers.kv) block = arena.take(shape.compute, {rows, kv});
  } else {
    buffers.kv[0] = arena.take(shape.compute, {all, kv});
  }
  if (!backward) {
    buffers.o = arena.take(shape.compute, {rows, shape.heads * shape.value_dim});
    buffers.lse = arena.take(DType::kF32, {rows, shape.heads});
  } else if (method == ContextMethod::kRing) {
    for (TensorView& block : buffers.dkv) block = arena.take(DType::kF32, {rows, kv});
    buffers.dkv_block = arena.take(DType::kF32, {rows, kv});
  } else {
    buffers.dkv[0] = arena.take(DType::kF32, {all, kv});
  }
  return buffers;
}

void ContextAxis::forward(Context& context, const Buffers& buffers, AttentionForward args,
                          ConstTensorView sink_H) {
  if (rank_.extent == 1 && !sink_H.given()) return attention_forward(context, args);
  const QuantizedOutput quantized = std::exchange(args.quantized, {});
  if (rank_.extent > 1 && method_ == ContextMethod::kUlysses) {
    forward_heads(context, buffers, args, sink_H);
  } else {
    rank_.extent == 1 ? attention_forward(context, args) : forward_blocks(context, buffers, args);
    if (sink_H.given()) attention_sinks(context, args.o, args.lse_TH, sink_H);
  }
  leave_quantized(context, quantized, args.o);
}

void ContextAxis::backward(Context& context, const Buffers& buffers, AttentionBackward args,
                           const AttentionSinks& sinks) {
  if (rank_.extent > 1 && method_ == ContextMethod::kUlysses) {
    args.o = {};
    return backward_heads(context, buffers, args, sinks);
  }
  if (sinks.given()) sinks.backward(context, args);
  if (rank_.extent == 1) return attention_backward(context, args);
  args.o = {};  // for who computes whole sequences, which nobody does here
  if (method_ == ContextMethod::kRing) return backward_ring(context, buffers, args);
  backward_gathered(context, buffers, args);
}

namespace {

/// The hop of a ring: to the next rank, from the one before.
Pending hop(Communicator& channel, TensorView out, TensorView in) {
  const int size = channel.size(), index = channel.rank();
  const Message send = message_of((index + 1) % size, out);
  const Message receive = message_of((index + size - 1) % size, in);
  return channel.start_exchange({&send, 1}, {&receive, 1});
}

void pack(Context& context, const TensorView& rows, const ContextShape& shape,
          const ConstHeadsView& k, const ConstHeadsView& v) {
  const KvHeads packed = kv_heads(rows, shape);
  copy_heads(context, packed.k, k);
  copy_heads(context, packed.v, v);
}

}  // namespace

void ContextAxis::forward_blocks(Context& context, const Buffers& buffers, AttentionForward args) {
  const ContextShape& shape = buffers.shape;
  const std::int64_t rows = shape.sequences * shape.tokens;
  const bool ring = method_ == ContextMethod::kRing;
  const HeadsView o = args.o;
  const TensorView lse = args.lse_TH;
  args.mask.q = ranges_of(rank_.index);
  const auto block = [&](int step) {
    return ring ? buffers.kv[step % 2] : buffers.kv[0].rows(behind(step) * rows, rows);
  };
  pack(context, block(0), shape, args.k, args.v);
  Pending gather = ring ? Pending() : channel_->start_all_gather(buffers.kv[0]);
  for (int step = 0; step < rank_.extent; ++step) {
    Pending move;
    if (ring && step + 1 < rank_.extent) move = hop(*channel_, block(step), block(step + 1));
    if (step == 1) gather.wait();
    const KvHeads kv = kv_heads(block(step), shape);
    args.k = kv.k;
    args.v = kv.v;
    args.mask.kv = ranges_of(behind(step));
    if (step == 1) {
      args.o = heads_of(buffers.o, 0, shape.heads, shape.value_dim);
      args.lse_TH = buffers.lse;
    }
    attention_forward(context, args);
    if (step > 0) attention_merge(context, o, lse, args.o, args.lse_TH);
    move.wait();
  }
}

void ContextAxis::backward_ring(Context& context, const Buffers& buffers, AttentionBackward args) {
  const ContextShape& shape = buffers.shape;
  const HeadsView dk = args.dk, dv = args.dv;
  args.mask.q = ranges_of(rank_.index);
  pack(context, buffers.kv[0], shape, args.k, args.v);
  // The sums of a block travel with it, one hop behind, and reach their owner with the last.
  Pending travel;
  for (int step = 0; step < rank_.extent; ++step) {
    Pending move;
    if (step + 1 < rank_.extent)
      move = hop(*channel_, buffers.kv[step % 2], buffers.kv[(step + 1) % 2]);
    const KvHeads kv = kv_heads(buffers.kv[step % 2], shape);
    const TensorView sums = step == 0 ? buffers.dkv[0] : buffers.dkv_block;
    clear(context, sums);
    const KvHeads gradient = kv_heads(sums, shape);
    args.k = kv.k;
    args.v = kv.v;
    args.dk = gradient.k;
    args.dv = gradient.v;
    args.mask.kv = ranges_of(behind(step));
    attention_backward(context, args);
    if (step > 0) {
      travel.wait();
      accumulate(context, buffers.dkv[step % 2], buffers.dkv_block);
    }
    travel = hop(*channel_, buffers.dkv[step % 2], buffers.dkv[(step + 1) % 2]);
    move.wait();
  }
  travel.wait();
  const KvHeads home = kv_heads(buffers.dkv[rank_.extent % 2], shape);
  copy_heads(context, dk, home.k);
  copy_heads(context, dv, home.v);
}

void ContextAxis::backward_gathered(Context& context, const Buffers& buffers,
                                    AttentionBackward args) {
  const ContextShape& shape = buffers.shape;
  const std::int64_t rows = shape.sequences * shape.tokens;
  const HeadsView dk = args.dk, dv = args.dv;
  args.mask.q = ranges_of(rank_.index);
  const auto block = [&](const TensorView& all, int step) {
    return kv_heads(all.rows(behind(step) * rows, rows), shape);
  };
  pack(context, buffers.kv[0].rows(rank_.index * rows, rows), shape, args.k, args.v);
  Pending gather = channel_->start_all_gather(buffers.kv[0]);
  clear(context, buffers.dkv[0]);
  for (int step = 0; step < rank_.extent; ++step) {
    if (step == 1) gather.wait();
    const KvHeads kv = block(buffers.kv[0], step), gradient = block(buffers.dkv[0], step);
    args.k = kv.k;
    args.v = kv.v;
    args.dk = gradient.k;
    args.dv = gradient.v;
    args.mask.kv = ranges_of(behind(step));
    attention_backward(context, args);
  }
  channel_->start_reduce_scatter(buffers.dkv[0]).wait();
  const KvHeads home = block(buffers.dkv[0], 0);
  copy_heads(context, dk, home.k);
  copy_heads(context, dv, home.v);
}

namespace {

/// Where the chunk of a rank and a sequence stands in rows of `ranks` and `sequences`.
struct Chunks {
  TensorView rows;
  std::int64_t ranks, sequences;

  [[nodiscard]] auto by_rank() const {
    return [*this](std::int64_t rank, std::int64_t sequence) {
      return at(rank * sequences + sequence);
    };
  }
  [[nodiscard]] auto by_sequence() const {
    return
        [*this](std::int64_t rank, std::int64_t sequence) { return at(sequence * ranks + rank); };
  }

 private:
  [[nodiscard]] std::span<std::byte> at(std::int64_t index) const {
    const std::size_t bytes = rows.bytes() / static_cast<std::size_t>(ranks * sequences);
    return {rows.data + static_cast<std::size_t>(index) * bytes, bytes};
  }
};

}  // namespace

template <class From, class To>
void ContextAxis::exchange_chunks(Context& context, std::int64_t sequences, const From& from,
                                  const To& to) {
  sends_.clear();
  receives_.clear();
  for (int rank = 0; rank < rank_.extent; ++rank) {
    for (std::int64_t sequence = 0; sequence < sequences; ++sequence) {
      const std::span<std::byte> out = from(rank, sequence), in = to(rank, sequence);
      if (rank == rank_.index) {
        copy_bytes(context, in.data(), out.data(), in.size());
      } else {
        sends_.push_back({rank, out});
        receives_.push_back({rank, in});
      }
    }
  }
  channel_->start_exchange(sends_, receives_).wait();
}

void ContextAxis::to_sequences(Context& context, TensorView out, TensorView in,
                               std::int64_t sequences) {
  exchange_chunks(context, sequences, Chunks{out, rank_.extent, sequences}.by_rank(),
                  Chunks{in, rank_.extent, sequences}.by_sequence());
}

void ContextAxis::to_ranks(Context& context, TensorView out, TensorView in,
                           std::int64_t sequences) {
  exchange_chunks(context, sequences, Chunks{out, rank_.extent, sequences}.by_sequence(),
                  Chunks{in, rank_.extent, sequences}.by_rank());
}

void ContextAxis::exchange_heads(Context& context, const Buffers& buffers, const ConstHeadsView& q,
                                 const ConstHeadsView& k, const ConstHeadsView& v) {
  const ContextShape& shape = buffers.shape;
  const HeadShare share(shape, rank_.extent);
  const std::int64_t rows = shape.sequences * shape.tokens;
  for (int rank = 0; rank < rank_.extent; ++rank) {
    const QkvHeads out = qkv_heads(buffers.sent.rows(rank * rows, rows), share);
    copy_heads(context, out.q, some_heads(q, rank * share.q, share.q));
    copy_heads(context, out.k, some_heads(k, share.first_kv(rank), share.kv));
    copy_heads(context, out.v, some_heads(v, share.first_kv(rank), share.kv));
  }
  to_sequences(context, buffers.sent, buffers.received, shape.sequences);
}

AttentionMask ContextAxis::whole_mask(Context& context, const Buffers& buffers,
                                      const AttentionMask& mask) {
  AttentionMask whole = mask;
  whole.q = whole.kv = ranges_;
  if (!mask.first_key_T.given()) return whole;
  const std::int64_t sequences = buffers.shape.sequences;
  const Chunks all{buffers.first_key, rank_.extent, sequences};
  // Every rank gets the same of this one's. A send only reads.
  const ConstTensorView mine = mask.first_key_T;
  const Chunks own{{const_cast<std::byte*>(mine.data), mine.dtype, mine.shape}, 1, sequences};
  const auto to_all = [&](int, std::int64_t sequence) { return own.by_rank()(0, sequence); };
  exchange_chunks(context, sequences, to_all, all.by_sequence());
  whole.first_key_T = buffers.first_key;
  return whole;
}

void ContextAxis::forward_heads(Context& context, const Buffers& buffers, AttentionForward args,
                                ConstTensorView sink_H) {
  const ContextShape& shape = buffers.shape;
  const HeadShare share(shape, rank_.extent);
  const std::int64_t rows = shape.sequences * shape.tokens;
  const HeadsView o = args.o;
  exchange_heads(context, buffers, args.q, args.k, args.v);
  const QkvHeads whole = qkv_heads(buffers.received, share);
  args.mask = whole_mask(context, buffers, args.mask);
  args.dropout.first_head += rank_.index * share.q;
  args.q = whole.q;
  args.k = whole.k;
  args.v = whole.v;
  args.o = heads_of(buffers.o_sent, 0, share.q, shape.value_dim);
  args.lse_TH = args.lse_TH.reshape({rows * rank_.extent, share.q});
  attention_forward(context, args);
  if (sink_H.given())
    attention_sinks(context, args.o, args.lse_TH, sink_H.rows(rank_.index * share.q, share.q));
  to_ranks(context, buffers.o_sent, buffers.o_received, shape.sequences);
  for (int rank = 0; rank < rank_.extent; ++rank) {
    copy_heads(context, some_heads(o, rank * share.q, share.q),
               heads_of(buffers.o_received.rows(rank * rows, rows), 0, share.q, shape.value_dim));
  }
}

void ContextAxis::backward_heads(Context& context, const Buffers& buffers, AttentionBackward args,
                                 const AttentionSinks& sinks) {
  const ContextShape& shape = buffers.shape;
  const HeadShare share(shape, rank_.extent);
  const std::int64_t rows = shape.sequences * shape.tokens;
  const HeadsView dq = args.dq, dk = args.dk, dv = args.dv;
  exchange_heads(context, buffers, args.q, args.k, args.v);
  const ConstHeadsView delta(args.delta_TH.data, DType::kF32, rows, shape.heads, 1, shape.heads);
  for (int rank = 0; rank < rank_.extent; ++rank) {
    copy_heads(context,
               heads_of(buffers.o_sent.rows(rank * rows, rows), 0, share.q, shape.value_dim),
               some_heads(args.d_o, rank * share.q, share.q));
    copy_heads(context, heads_of(buffers.delta_sent.rows(rank * rows, rows), 0, share.q, 1),
               some_heads(delta, rank * share.q, share.q));
  }
  to_sequences(context, buffers.o_sent, buffers.o_received, shape.sequences);
  to_sequences(context, buffers.delta_sent, buffers.delta, shape.sequences);

  const QkvHeads whole = qkv_heads(buffers.received, share);
  const QkvHeads gradient = qkv_heads(buffers.gradient, share);
  clear(context, buffers.gradient);
  args.mask = whole_mask(context, buffers, args.mask);
  args.dropout.first_head += rank_.index * share.q;
  args.q = whole.q;
  args.k = whole.k;
  args.v = whole.v;
  args.d_o = heads_of(buffers.o_received, 0, share.q, shape.value_dim);
  args.lse_TH = args.lse_TH.reshape({rows * rank_.extent, share.q});
  args.delta_TH = buffers.delta;
  args.dq = gradient.q;
  args.dk = gradient.k;
  args.dv = gradient.v;
  if (sinks.given())
    sinks.heads(rank_.index * share.q, share.q, rows * rank_.extent).backward(context, args);
  attention_backward(context, args);

  to_ranks(context, buffers.gradient, buffers.gradient_received, shape.sequences);
  const auto from = [&](int rank) { return buffers.gradient_received.rows(rank * rows, rows); };
  for (int rank = 0; rank < rank_.extent; ++rank) {
    copy_heads(context, some_heads(dq, rank * share.q, share.q), qkv_heads(from(rank), share).q);
  }
  // Ranks that share a key head are neighbours: their sums are added in order.
  for (int first = 0; first < rank_.extent;) {
    int next = first + 1;
    for (; next < rank_.extent && share.first_kv(next) == share.first_kv(first); ++next)
      accumulate(context, from(first), from(next));
    const QkvHeads sums = qkv_heads(from(first), share);
    copy_heads(context, some_heads(dk, share.first_kv(first), share.kv), sums.k);
    copy_heads(context, some_heads(dv, share.first_kv(first), share.kv), sums.v);
    first = next;
  }
}

}  // namespace trireme
