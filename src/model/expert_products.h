#pragma once
// The products of a rank's experts (kernels/grouped_gemm), of operands in the compute type or in
// fp8, as fp8_linear.h says for one linear. There rows are quantised by segment, an expert's from
// one source: with one scale for each (part of its columns), or in blocks. So what a source's
// tokens come to does not depend on which rank has the expert; a cut of F over expert_tensor leaves
// each rank its own scales of activations.

#include "model/fp8_linear.h"
#include "model/layer_shape.h"
#include "tensor/quantized_segments.h"

namespace trireme {

struct LayerPass;

/// Weights [G, N, K] of the G experts of this rank.
struct ExpertMatrices {
  ConstTensorView weight;
  /// In fp8, in place of `weight`: what the lease, which must outlive this, has of them.
  const ExpertLinearParams* fp8 = nullptr;
  const ParamStore::Lease* lease = nullptr;
  ConstTensorView bias =
      {};  ///< [G, N] in the compute type: no product adds it (kernels/expert_rows)

  [[nodiscard]] ConstQuantizedMatrices quantized() const {
    return lease->quantized(fp8->weight, fp8->each);
  }
};
ExpertMatrices weights_of(const ParamStore::Lease& lease, const ExpertLinearParams& params);

/// Where rows of experts lie: begins [G P + 1] of P sources (kernels/expert_rows).
struct ExpertTable {
  ConstTensorView begins;
  std::int64_t sources = 1;
};

/// What a product reads: rows [most, columns]; or, in blocks of fp8, tokens of which gather_rows
/// would make them, or the codes that an op has left in place of them.
struct ExpertOperand {
  ConstTensorView x;
  ConstTensorView row_slot = {};  ///< of tokens, each of which has so many slots
  std::int64_t slots = 1;
  ConstQuantizedSegments codes = {};

  static ExpertOperand of(const ConstQuantizedSegments& codes) { return {{}, {}, 1, codes}; }
  [[nodiscard]] std::int64_t rows() const {
    return row_slot.given() ? row_slot.count() : x.shape[0];
  }
};

struct ExpertProducts {
  const LayerPass& pass;
  ExpertTable table;

  /// y[r] = x[r] W_g^T;  dx[r] = dy[r] W_g;  dW_g (+)= dy^T x over the rows of expert g
  void forward(TensorView y_RN, const ExpertOperand& x_RK, const ExpertMatrices& weights,
               const char* use) const;
  void backward_input(TensorView dx_RK, const ExpertOperand& dy_RN, const ExpertMatrices& weights,
                      const char* use) const;
  void backward_weight(const Gradients::Product& gradient, const ExpertLinearParams& params,
                       const ExpertOperand& dy_RN, const ExpertOperand& x_RK) const;
  /// db_g (+)= sum_r factors[r] dy[r]: what multiplies the bias in row r, [most, 1].
  void backward_bias(const Gradients::Product& gradient, ConstTensorView dy_RN,
                     ConstTensorView factors_R1) const;

  /// Whether products of these read tokens and codes.
  [[nodiscard]] bool in_blocks(const ExpertMatrices& weights) const {
    return weights.fp8 != nullptr && in_blocks(*weights.fp8);
  }
  [[nodiscard]] bool in_blocks(const ExpertLinearParams& params) const;
  /// Codes of rows along, in the scratch memory, for the op that makes the rows just before
  /// `forward` or `backward_input` reads them.
  [[nodiscard]] QuantizedSegments codes_along(std::int64_t rows, const ScaleDim& columns,
                                              DType format) const;
};

/// Bytes of the operands in fp8 of any of a layer's, in Fp8Products::scratch.
std::int64_t fp8_expert_bytes(const LayerShape& layer, const Fp8Precision& precision);

}  // namespace trireme
