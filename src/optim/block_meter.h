#pragma once
// What an update is made of and what it does, block by block of the model: the squares of
// gradients, of weights and of their changes, as exact sums (base/exact_sum.h), so that what ranks
// have of a block adds up to the same bits however its rows are shared out.

#include <cstdint>
#include <functional>
#include <limits>
#include <vector>

#include "base/exact_sum.h"
#include "base/math.h"
#include "kernels/update/update.h"
#include "store/param_store.h"

namespace trireme {

/// Of a block, by the trained parameters of it that this rank counts.
struct BlockSquares {
  std::int64_t elements = 0;
  ExactSum gradient, weights, update;  ///< before clipping; before the update; what it has changed
};

class BlockMeter {
 public:
  /// How much of a parameter is looked at together: pieces of so many elements or fewer, but of one
  /// row at least; or all of it, for updates that are not of rows.
  enum class Piece : std::int64_t {
    kRows = std::int64_t{4} << 20,
    kWhole = std::numeric_limits<std::int64_t>::max()
  };

  /// `place_of`: which of the `blocks` of the model a block of the store is. Takes memory for the
  /// largest piece. The store must outlive it.
  BlockMeter(const ParamStore& store, std::vector<int> place_of, int blocks, Device device,
             Piece piece = Piece::kRows);
  static std::int64_t buffer_bytes(const std::vector<ParamMeta>& params, const StoreLayout& layout,
                                   Piece piece = Piece::kRows);

  /// Before an update: nothing has been seen.
  void clear();
  /// `update` changes the rows of `tensor` that it is given: in turn all of the parameter's, with
  /// the bits of one call. On a GPU waits for each piece.
  void measure(Context& context, ParamIndex index, const UpdateTensor& tensor,
               const std::function<void(const UpdateTensor&)>& update);
  /// `update` changes `value`, all rows that this rank owns of the parameter (none are well), by a
  /// call. Where pieces are whole.
  void measure(Context& context, ParamIndex index, const TensorView& value,
               const std::function<void()>& update);
  [[nodiscard]] std::vector<BlockSquares>& squares() { return squares_; }

 private:
  BlockSquares& begin(Context& context, ParamIndex index, const Shape& owned);
  /// Adds the squares of `value` as it is, and of what `update` changes of it.
  void measure_change(Context& context, BlockSquares& squares, const TensorView& value,
                      const std::function<void()>& update);

  const ParamStore& store_;
  Piece piece_;
  std::vector<int> place_of_;
  std::vector<BlockSquares> squares_;
  Buffer old_;
};

}  // namespace trireme
