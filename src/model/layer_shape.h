#pragma once

#include "config/run_config.h"
#include "parallel/context_axis.h"
#include "parallel/expert_place.h"
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
  int tensor_extent = 1;
  bool sequence_parallel = false;
  ExpertCut expert = {};
  bool split = false;       ///< B and W are apart: each layer keeps what W needs
  bool magnitudes = false;  ///< of adapters (AdapterConfig)
  bool dropout = false;     ///< before them
  bool maxima = false;      ///< kept, of what products in fp8 read, with one scale a tensor
  /// No layer has the MLP's activation in rows, nor the gradient before it (model/mlp.h).
  bool mlp_codes = false, mlp_gradient_codes = false;
  bool codes_apart = false;   ///< those of the gradient stand while experts compute
  bool expert_codes = false;  ///< what B leaves for W of experts' units is codes (model/experts.h)

  /// The same of another layer.
  [[nodiscard]] LayerShape of(const LayerConfig& other) const {
    return {other,
            hidden,
            sequences,
            tokens,
            residual_tokens,
            compute,
            context_extent,
            context_method,
            recompute,
            tensor_extent,
            sequence_parallel,
            expert,
            split,
            magnitudes,
            dropout,
            maxima,
            mlp_codes,
            mlp_gradient_codes,
            codes_apart,
            expert_codes};
  }
  [[nodiscard]] TensorSize wide(std::int64_t columns) const { return {compute, {tokens, columns}}; }
  [[nodiscard]] TensorSize residual() const { return residual(hidden); }
  [[nodiscard]] TensorSize residual(std::int64_t columns) const {
    return {compute, {residual_tokens, columns}};
  }
  [[nodiscard]] TensorSize statistic(std::int64_t heads) const {
    return {DType::kF32, {tokens, heads}};
  }
  [[nodiscard]] TensorSize of_q_and_k() const { return {DType::kF32, {2, tokens}}; }
  [[nodiscard]] static TensorSize maxima_of(std::int64_t parts) { return {DType::kI32, {parts}}; }
  [[nodiscard]] TensorSize row() const { return {DType::kF32, {residual_tokens}}; }
  /// Of layers with experts: tokens that a rank routes, those that come to it at most, and their
  /// rows.
  [[nodiscard]] std::int64_t home_tokens() const {
    return sequence_parallel ? residual_tokens : ceil_div(tokens, tensor_extent);
  }
  [[nodiscard]] std::int64_t received_tokens() const { return expert.ranks() * home_tokens(); }
  [[nodiscard]] std::int64_t local_experts() const {
    return ceil_div(config.experts->count, expert.expert.extent);
  }
  [[nodiscard]] std::int64_t expert_rows() const {
    return received_tokens() * std::min(config.experts->chosen, local_experts());
  }
  /// What B leaves for W takes the memory of activations that have no use after B. With full
  /// recomputation layers share those: there is nothing to exchange.
  [[nodiscard]] bool exchanges() const { return split && recompute != Recompute::kFull; }
  /// The same for a tensor of all tokens and one of residual rows.
  [[nodiscard]] bool exchanges_residual() const { return exchanges() && has_all_rows(); }
  /// The residual stream.
  [[nodiscard]] bool has_all_rows() const { return residual_tokens == tokens; }
};

/// What buffers that the layers of a model share are laid out for.
LayerConfig largest_layer(const ModelConfig& config);

}  // namespace trireme
