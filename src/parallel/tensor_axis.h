#pragma once
// How activations lie on the tensor axis. Within attention and MLP each rank has all tokens and its
// shard of the heads or columns; of the residual stream it has whole rows, of all tokens or
// (sequence parallelism; Korthikanti et al. 2022) of its shard of the sequence. Two transitions
// lead from one to the other, and each is the other's backward:
//
//   all-gather   residual rows -> all rows:     nothing without sequence parallelism
//   reduce       partial sums -> residual rows: an all-reduce, or a reduce-scatter of the sequence
//
// Both work in place on a buffer of all tokens [T, C], of which `residual_rows` are the residual
// rows. Under sequence parallelism they travel beside the products at either end, split by ranks'
// rows (as the ring exchanges of Wang et al., ASPLOS 2023, each pair of ranks at once).

#include <vector>

#include "comm/communicator.h"
#include "device/context.h"
#include "parallel/cut.h"
#include "tensor/tensor_view.h"

namespace trireme {

class TensorAxis {
 public:
  /// One rank: it has all rows, and the transitions are nothing.
  TensorAxis() = default;
  /// `cuts_tokens`: sequence parallelism. `channel` must outlive this and move activations' memory.
  TensorAxis(Communicator& channel, bool cuts_tokens)
      : channel_(&channel), rank_{channel.size(), channel.rank()}, cuts_tokens_(cuts_tokens) {}

  [[nodiscard]] AxisRank rank() const { return rank_; }
  [[nodiscard]] int extent() const { return rank_.extent; }
  /// The first rank adds what must be added once (biases behind partial sums).
  [[nodiscard]] bool first() const { return rank_.index == 0; }

  /// Tokens of the residual stream that a rank of such an axis has of `tokens`, which it divides.
  static std::int64_t residual_tokens(std::int64_t tokens, int extent, bool cuts_tokens) {
    return cuts_tokens ? div_exact(tokens, extent) : tokens;
  }
  [[nodiscard]] std::int64_t residual_tokens(std::int64_t tokens) const {
    return residual_tokens(tokens, rank_.extent, cuts_tokens_);
  }
  /// Which of `tokens` rows are the residual stream's on this rank.
  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  [[nodiscard]] Rows residual_range(std::int64_t tokens) const {
    const std::int64_t rows = residual_tokens(tokens);
    return {cuts_tokens_ ? rows * rank_.index : 0, rows};
  }
  template <class Byte>
  [[nodiscard]] BasicTensorView<Byte> residual_rows(const BasicTensorView<Byte>& x_TC) const {
    const Rows rows = residual_range(x_TC.shape[0]);
    return x_TC.rows(rows.first, rows.count);
  }

  /// The residual rows stand in `x`; after the wait all rows do.
  [[nodiscard]] Pending start_all_gather(TensorView x_TC) const;
  void all_gather(TensorView x_TC) const { start_all_gather(x_TC).wait(); }
  /// `x` holds partial sums; after the wait its residual rows hold the sums, others are undefined.
  [[nodiscard]] Pending start_reduce(TensorView x_TC) const;
  void reduce(TensorView x_TC) const { start_reduce(x_TC).wait(); }
  /// The same for rows that `make(first, count)` makes: under sequence parallelism those of the
  /// other ranks first, each on its way while the next are made, this rank's own last; all at
  /// once where ranks share memory, as nothing waits for a wire then. `scratch` has room for as
  /// much as x. On the CPU the bits of reduce; with NCCL the order of sums is that of the
  /// ranks.
  template <class Make>
  void make_reduced(Context& context, TensorView x_TC, TensorView scratch_TC,
                    const Make& make) const {
    const std::int64_t tokens = x_TC.shape[0];
    if (!cuts_tokens_ || channel_->shares_memory()) {
      make(0, tokens);
      return reduce(x_TC);
    }
    const std::int64_t rows = residual_tokens(tokens);
    std::vector<Pending> under_way;
    for (int hop = 1; hop < rank_.extent; ++hop) {
      make((rank_.index + hop) % rank_.extent * rows, rows);
      under_way.push_back(start_hop(x_TC, scratch_TC, hop));
    }
    make(rank_.index * rows, rows);
    for (Pending& hop : under_way) hop.wait();
    add_hops(context, x_TC, scratch_TC);
  }
  /// `use(first, count)` reads rows that an all-gather brings, this rank's own before the others.
  template <class Use>
  void use_gathered(TensorView x_TC, Pending others, const Use& use) const {
    const std::int64_t tokens = x_TC.shape[0];
    const Rows own = residual_range(tokens);
    use(own.first, own.count);
    others.wait();
    if (own.first > 0) use(0, own.first);
    const std::int64_t behind = own.first + own.count;
    if (behind < tokens) use(behind, tokens - behind);
  }
  /// An all-reduce of what has no rows, with or without sequence parallelism.
  void sum(TensorView x) const;
  /// `parts` [extent, ...]: every rank's part, where this one has filled its own.
  void gather_parts(TensorView parts) const;

 private:
  /// Rows of the rank so many behind, and what the one as many before has made of this rank's.
  [[nodiscard]] Pending start_hop(TensorView x_TC, TensorView scratch_TC, int hop) const;
  void add_hops(Context& context, TensorView x_TC, TensorView scratch_TC) const;

  Communicator* channel_ = nullptr;
  AxisRank rank_;
  bool cuts_tokens_ = false;
};

}  // namespace trireme
