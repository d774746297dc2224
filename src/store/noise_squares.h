#pragma once
// What the gradient noise scale is measured on: the squares of one micro-batch's gradient, before
// any sum over ranks, and those of the step's.

#include <vector>

#include "parallel/cut.h"
#include "store/param_store.h"
#include "tensor/buffer.h"

namespace trireme {

/// Of the weights of products whose gradient a rank has in whole for its own tokens: not a tied
/// head's, not experts', which mix tokens of many ranks, none that is partial on tensor-parallel
/// ranks.
class NoiseSquares {
 public:
  /// References must outlive it. `tensor`: the rank on that axis.
  NoiseSquares(Context& context, const ParamStore& store, AxisRank tensor);
  /// A step begins, or begins again.
  void clear();
  /// A block holds the gradients of the first micro-batch alone. A device is not waited for: a
  /// recorded step may hold this.
  void add(int block);
  /// In exact sums, rounded once: what this rank has for its tokens, one copy over the tensor axis;
  /// and, once the step's sum is final, what of that it counts.
  [[nodiscard]] double of_micro_batch();
  [[nodiscard]] double of_step();

 private:
  [[nodiscard]] bool measures(ParamIndex index) const;

  Context& context_;
  const ParamStore& store_;
  AxisRank tensor_;
  Buffer words_;
  std::vector<ConstTensorView> gradients_;
};

}  // namespace trireme
