#pragma once
// How the tokens of a sequence lie on the context axis, and attention over all of them. A sequence
// is split into 2c segments; rank i holds i and 2c-1-i, so that causal attention is the same
// work everywhere (zigzag; Zhu 2024, ring-flash-attention). Everything but attention computes on a
// rank's own tokens. Attention sees the others' keys in one of three ways:
//
//   ring       blocks of keys and values go round, one hop while the block before computes (Liu et
//              al. 2023); results are merged by their log-sum-exp. Two blocks of memory
//   allgather  all blocks come at once and are computed in the order of the ring: the bits of ring
//              in the forward pass, all keys in memory
//   ulysses    tokens are exchanged for heads before and after (Jacobs et al. 2023)

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "config/run_config.h"
#include "kernels/attention/attention.h"
#include "parallel/cut.h"
#include "tensor/arena.h"

namespace trireme {

/// Where a rank's tokens stand in a sequence of `tokens`, a multiple of 2 * extent: on one rank
/// one, else two.
std::vector<PositionRange> context_ranges(std::int64_t tokens, AxisRank rank);

/// Attention of one rank: its own tokens, of all sequences of a micro-batch.
struct ContextShape {
  std::int64_t sequences = 1, tokens = 1;  ///< tokens of a sequence that the rank holds
  std::int64_t heads = 1, kv_heads = 1;
  std::int64_t head_dim = 2, value_dim = 2;  ///< of q and k; of v and o
  DType compute = DType::kF32;
};

/// Sinks of heads and where their gradient goes; or none.
struct AttentionSinks {
  TensorView dsink_H, terms_TH;  ///< f32: added to; memory
  ConstTensorView sink_H;

  [[nodiscard]] bool given() const { return sink_H.given(); }
  /// Heads [first, first + count) of `tokens` rows.
  [[nodiscard]] AttentionSinks heads(std::int64_t first, std::int64_t count,
                                     std::int64_t tokens) const {
    return {dsink_H.rows(first, count), terms_TH.reshape({tokens, count}),
            sink_H.rows(first, count)};
  }
  void backward(Context& context, const AttentionBackward& args) const;
};

class ContextAxis {
 public:
  /// One rank: attention as it is.
  ContextAxis() = default;
  /// `channel` must outlive this and move the memory that activations are in.
  ContextAxis(Communicator& channel, ContextMethod method, std::int64_t sequence_tokens);

  [[nodiscard]] AxisRank rank() const { return rank_; }
  /// Where this rank's tokens stand.
  [[nodiscard]] std::span<const PositionRange> own(std::int64_t tokens);

  /// Memory that attention takes within one call; nothing on one rank.
  struct Buffers {
    ContextShape shape;
    TensorView kv[2], o, lse;       ///< ring, allgather (kv[0]: all blocks)
    TensorView dkv[2], dkv_block;   ///< backward (allgather: dkv[0] all blocks)
    TensorView sent, received;      ///< ulysses: q, k, v by heads; then gradients
    TensorView o_sent, o_received;  ///< o or dO by heads
    TensorView delta_sent, delta;   ///< delta by heads
    TensorView gradient, gradient_received;
    TensorView first_key;
  };
  enum class Direction : std::uint8_t { kForward, kBackward };
  static Buffers lay_out(ArenaCursor& arena, const ContextShape& shape, int extent,
                         ContextMethod method, Direction direction);

  /// attention_forward over the keys of all ranks. Of `args` k and v are this rank's; the mask's
  /// ranges are not looked at, its first_key is of this rank's queries. With ulysses `lse` is in an
  /// order of its own. `sink` [heads] may be left out.
  void forward(Context& context, const Buffers& buffers, AttentionForward args,
               ConstTensorView sink_H = {});
  /// attention_backward; dk and dv are the sums over the queries of all ranks, the sinks' gradient
  /// is this rank's part.
  void backward(Context& context, const Buffers& buffers, AttentionBackward args,
                const AttentionSinks& sinks = {});

 private:
  void forward_blocks(Context& context, const Buffers& buffers, AttentionForward args);
  void backward_ring(Context& context, const Buffers& buffers, AttentionBackward args);
  void backward_gathered(Context& context, const Buffers& buffers, AttentionBackward args);
  void forward_heads(Context& context, const Buffers& buffers, AttentionForward args,
                     ConstTensorView sink_H);
  void backward_heads(Context& context, const Buffers& buffers, AttentionBackward args,
                      const AttentionSinks& sinks);
  void exchange_heads(Context& context, const Buffers& buffers, const ConstHeadsView& q,
                      const ConstHeadsView& k, const ConstHeadsView& v);
  /// Rows of ranks' tokens lie as [rank][sequence][tokens] or as [sequence][rank][tokens]. Each
  /// rank sends every rank its chunks of `out`, laid the first way, and gets `in`, laid the second.
  void to_sequences(Context& context, TensorView out, TensorView in, std::int64_t sequences);
  /// The way back: `out` lies the second way, `in` the first.
  void to_ranks(Context& context, TensorView out, TensorView in, std::int64_t sequences);
  /// What `from(rank, sequence)` holds goes to `rank`; what comes from there is laid where
  /// `to(rank, sequence)` says. Spans of bytes, of one size in a sequence.
  template <class From, class To>
  void exchange_chunks(Context& context, std::int64_t sequences, const From& from, const To& to);
  [[nodiscard]] AttentionMask whole_mask(Context& context, const Buffers& buffers,
                                         const AttentionMask& mask);
  [[nodiscard]] int behind(int steps) const {
    return (rank_.index + rank_.extent - steps) % rank_.extent;
  }
  [[nodiscard]] std::span<const PositionRange> ranges_of(int index) const {
    return std::span(ranges_).subspan(static_cast<std::size_t>(index) * 2, 2);
  }

  Communicator* channel_ = nullptr;
  ContextMethod method_ = ContextMethod::kRing;
  AxisRank rank_;
  std::vector<PositionRange> ranges_;  ///< of every rank, in order
  PositionRange alone_{};
  std::vector<Message> sends_, receives_;  ///< of the exchange that is being started
};

}  // namespace trireme
