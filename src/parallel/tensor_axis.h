#pragma once
// How activations lie on the tensor axis. Inside a layer each place has all tokens and a cut of the
// heads or columns; on the residual stream each has whole rows, of all tokens or (sequence
// parallelism; Korthikanti et al. 2022) of its share of them. Two transitions lead from one to the
// other, and each is the other's backward:
//
//   to the inside    stream -> every row:        nothing, or a gather of the rows
//   to the stream    partial sums -> the stream: the sum, everywhere or of each place's rows
//
// Both work in place on a buffer of all tokens [T, C] whose rows `stream_rows` are the stream's.
// Under sequence parallelism they travel beside the products at either end, cut where the places'
// rows are (as in the ring exchanges of Wang et al., ASPLOS 2023, each pair of places at once).

#include <vector>

#include "comm/communicator.h"
#include "device/context.h"
#include "parallel/cut.h"
#include "tensor/tensor_view.h"

namespace trireme {

class TensorAxis {
 public:
  /// One place: the stream is everything and the transitions are nothing.
  TensorAxis() = default;
  /// `cuts_tokens`: sequence parallelism. `channel` must outlive this and move the memory that
  /// activations are in.
  TensorAxis(Communicator& channel, bool cuts_tokens)
      : channel_(&channel), place_{channel.size(), channel.rank()}, cuts_tokens_(cuts_tokens) {}

  [[nodiscard]] AxisPlace place() const { return place_; }
  [[nodiscard]] int extent() const { return place_.extent; }
  /// The first place adds what must be added once (biases behind partial sums).
  [[nodiscard]] bool first() const { return place_.index == 0; }

  /// Tokens of the stream that a place of such an axis has of `tokens`, which it divides.
  static std::int64_t stream_tokens(std::int64_t tokens, int extent, bool cuts_tokens) {
    return cuts_tokens ? div_exact(tokens, extent) : tokens;
  }
  [[nodiscard]] std::int64_t stream_tokens(std::int64_t tokens) const {
    return stream_tokens(tokens, place_.extent, cuts_tokens_);
  }
  /// Those of `tokens` rows that are the stream's here.
  struct Rows {
    std::int64_t first = 0, count = 0;
  };
  [[nodiscard]] Rows stream_range(std::int64_t tokens) const {
    const std::int64_t rows = stream_tokens(tokens);
    return {cuts_tokens_ ? rows * place_.index : 0, rows};
  }
  template <class Byte>
  [[nodiscard]] BasicTensorView<Byte> stream_rows(const BasicTensorView<Byte>& x_TC) const {
    const Rows rows = stream_range(x_TC.shape[0]);
    return x_TC.rows(rows.first, rows.count);
  }

  /// The rows of the stream stand in `x`; after the wait all rows do.
  [[nodiscard]] Pending start_to_inside(TensorView x_TC) const;
  void to_inside(TensorView x_TC) const { start_to_inside(x_TC).wait(); }
  /// `x` holds this place's part of every sum; after the wait its stream rows hold the sums, and
  /// where tokens are cut the other rows nothing of use.
  [[nodiscard]] Pending start_to_stream(TensorView x_TC) const;
  void to_stream(TensorView x_TC) const { start_to_stream(x_TC).wait(); }
  /// The same for rows that `make(first, count)` makes: under sequence parallelism those of the
  /// other places first, each on its way while the next are made, this place's own last; all at
  /// once where places share memory, as nothing waits for a wire then. `scratch` has room for as
  /// much as x. On the CPU the bits of to_stream; with NCCL the order of sums is that of the
  /// places.
  template <class Make>
  void make_to_stream(Context& context, TensorView x_TC, TensorView scratch_TC,
                      const Make& make) const {
    const std::int64_t tokens = x_TC.shape[0];
    if (!cuts_tokens_ || channel_->shares_memory()) {
      make(0, tokens);
      return to_stream(x_TC);
    }
    const std::int64_t rows = stream_tokens(tokens);
    std::vector<Pending> under_way;
    for (int hop = 1; hop < place_.extent; ++hop) {
      make((place_.index + hop) % place_.extent * rows, rows);
      under_way.push_back(start_hop(x_TC, scratch_TC, hop));
    }
    make(place_.index * rows, rows);
    for (Pending& hop : under_way) hop.wait();
    add_hops(context, x_TC, scratch_TC);
  }
  /// `use(first, count)` reads rows that are on their way inside, this place's own before the
  /// others have come.
  template <class Use>
  void use_inside(TensorView x_TC, Pending others, const Use& use) const {
    const std::int64_t tokens = x_TC.shape[0];
    const Rows own = stream_range(tokens);
    use(own.first, own.count);
    others.wait();
    if (own.first > 0) use(0, own.first);
    const std::int64_t behind = own.first + own.count;
    if (behind < tokens) use(behind, tokens - behind);
  }
  /// Sums over the places, everywhere: for what is no stream.
  void sum(TensorView x) const;
  /// `parts` [extent, ...]: every place's part, where this one has filled its own.
  void gather_parts(TensorView parts) const;

 private:
  /// Rows of the place so many behind this one, and what the one as many before it has made of
  /// this place's.
  [[nodiscard]] Pending start_hop(TensorView x_TC, TensorView scratch_TC, int hop) const;
  void add_hops(Context& context, TensorView x_TC, TensorView scratch_TC) const;

  Communicator* channel_ = nullptr;
  AxisPlace place_;
  bool cuts_tokens_ = false;
};

}  // namespace trireme
