#pragma once

#include "tensor/tensor_view.h"

namespace trireme {

/// The tokens of one forward pass: S sequences of T tokens, laid end to end.
struct MicroBatch {
  std::int64_t sequences = 0, tokens = 0;
  ConstTensorView input_ids;  ///< [S*T] i32
  ConstTensorView targets;    ///< [S*T] i32, -1 = not counted
  ConstTensorView positions;  ///< [S*T] i32: restart with each document where documents are masked
  /// [S*T] i32: where in the sequence the token's document begins; not given without document mask.
  ConstTensorView first_key;
  /// [S*T, 2] i32: of the run's samples the token's, and its position there; where dropout asks.
  ConstTensorView numbers;
  std::int64_t target_count = 0;  ///< targets that are counted
};

}  // namespace trireme
