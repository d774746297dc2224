#pragma once

#include "config/run_config.h"
#include "parallel/context_axis.h"
#include "tensor/arena.h"

namespace trireme {

/// Sizes of a layer's tensors. T: all tokens; S: those of this rank's residual rows.
struct LayerShape {
  const LayerConfig& config;  ///< with this rank's heads and MLP columns
  std::int64_t hidden = 1;
  std::int64_t sequences = 1, tokens = 1;  ///< T of all sequences
  std::int64_t residual_tokens = 1;        ///< S
  DType compute = DType::kF32;
  int context_extent = 1;
  ContextMethod context_method = ContextMethod::kRing;
  Recompute recompute = Recompute::kNone;
  bool split = false;  ///< B and W are apart: each layer keeps what W needs

  [[nodiscard]] TensorSize wide(std::int64_t columns) const { return {compute, {tokens, columns}}; }
  [[nodiscard]] TensorSize residual() const { return {compute, {residual_tokens, hidden}}; }
  [[nodiscard]] TensorSize statistic(std::int64_t heads) const {
    return {DType::kF32, {tokens, heads}};
  }
  [[nodiscard]] TensorSize of_q_and_k() const { return {DType::kF32, {2, tokens}}; }
  [[nodiscard]] TensorSize row() const { return {DType::kF32, {residual_tokens}}; }
  /// What B leaves for W takes the memory of activations that have no use after B. With full
  /// recomputation layers share those: there is nothing to exchange.
  [[nodiscard]] bool exchanges() const { return split && recompute != Recompute::kFull; }
  /// The same for a tensor of all tokens and one of residual rows.
  [[nodiscard]] bool exchanges_residual() const { return exchanges() && residual_tokens == tokens; }
};

}  // namespace trireme
