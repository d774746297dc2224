#pragma once
// Adapters beside the products of a rank's experts (AdapterConfig), of the rows r of expert g:
//   us = s x[r] A_g^T     y[r] += us B_g^T     du = s dy[r] B_g     dx[r] += du A_g
//   dA_g (+)= du^T x      dB_g (+)= dy^T us
// Products are those of kernels/grouped_gemm in the compute type, also beside experts in fp8. What
// is added is rounded before the sum as after it. The ranks that have parts of an expert have all
// of A, and rows of B, beside the first product, all of B and columns of A beside the last: what
// they make of du A, and of us B^T, is summed with the product's own.

#include "model/layer_shape.h"
#include "model/param_table.h"
#include "store/param_store.h"

namespace trireme {

struct LayerPass;
struct ExpertTable;

/// A [G, rank, K] and B [G, N, rank] of the G experts of this rank.
struct ExpertAdapters {
  ConstTensorView a_GRK, b_GNR;
  float scale = 1;
  [[nodiscard]] bool given() const { return a_GRK.given(); }
};
ExpertAdapters weights_of(const ParamStore::Lease& lease, const ExpertAdapterParams& params,
                          std::int64_t experts);

/// us or du of all rows that may come, from F to W, and from B.
inline TensorSize expert_adapter_rows(const LayerShape& layer, std::int64_t ranks) {
  return {layer.compute, {layer.expert_rows(), ranks}};
}
/// Bytes of LayerPass::adapters that they take: what a product makes, before it is added.
std::int64_t expert_adapter_bytes(const LayerShape& layer);

struct ExpertAdapterProducts {
  const LayerPass& pass;
  const ExpertTable& table;
  std::int64_t rows = 0;  ///< that there are at most; those behind them stay as they are

  /// us, and y += us B^T.
  void forward(TensorView y_RN, TensorView us_RA, ConstTensorView x_RK,
               const ExpertAdapters& weights) const;
  /// du, and dx += du A.
  void backward_input(TensorView dx_RK, TensorView du_RA, ConstTensorView dy_RN,
                      const ExpertAdapters& weights) const;
  /// What W reads.
  struct Operands {
    ConstTensorView dy_RN, x_RK, us_RA, du_RA;
  };
  void backward_weight(const Gradients& sink, const ExpertAdapterParams& params,
                       const Operands& of) const;

 private:
  /// c[r] = a[r] op(b_g), and y[r] += a[r] op(b_g).
  void product(TensorView c_RN, ConstTensorView a_RK, ConstTensorView b, Transpose transpose,
               const char* use) const;
  void add_product(TensorView y_RN, ConstTensorView a_RK, ConstTensorView b, Transpose transpose,
                   const char* use) const;
};

}  // namespace trireme
