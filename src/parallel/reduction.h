#pragma once

#include <vector>

#include "comm/communicator.h"
#include "parallel/param_store.h"

namespace trireme {

/// Sums the gradients of the data ranks, block by block, while backward goes on to the next block.
/// The loss is already divided by the targets of the global batch, so a plain sum is the gradient
/// of that loss.
class GradientReduction {
 public:
  /// `channel`: a channel of the data group of its own, for the memory that the store is in.
  GradientReduction(ParamStore& store, Communicator& channel);
  /// The gradients of `block` are final on this rank. Every rank starts the blocks in the same
  /// order.
  void start(int block);
  /// Blocks until every started block is summed.
  void finish();

 private:
  ParamStore& store_;
  Communicator& channel_;
  std::vector<Pending> pending_;
};

}  // namespace trireme
