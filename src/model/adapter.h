#pragma once
// Adapters beside a linear product (AdapterConfig):
//   us = s x A^T          y += us B^T          du = s dy B          dx += du A
//   dA = du^T x           dB = dy^T us
// A of all adapters of a product lie together, so that x and dx are met once. B of several
// projections (q, k, v) are blocks of one matrix [outputs, ranks], zero elsewhere.
//
// The tensor axis cuts B as the product's outputs or A as its inputs. What a row-parallel product
// adds from its adapters is summed with it; so is du A with dx of a column-parallel one.

#include <array>
#include <vector>

#include "kernels/gemm/gemm.h"
#include "model/layer_shape.h"
#include "model/param_table.h"
#include "store/param_store.h"
#include "tensor/arena.h"

namespace trireme {

/// us and du [T, ranks], in the compute type: from F to W, and from B.
struct AdapterRows {
  TensorView us_TR, du_TR;
};

inline TensorSize adapter_rows(const TensorSize& product, std::int64_t ranks) {
  return {product.dtype, {product.shape[0], ranks}};
}

inline constexpr int kAdaptersMax = 3;  ///< q, k, v

struct AdapterWeights {
  struct Part {
    ConstTensorView b_NR;
    std::int64_t first = 0;  ///< of the product's outputs, the projection's first
  };
  ConstTensorView a_RK;
  std::array<Part, kAdaptersMax> parts;
  int count = 0;
  std::int64_t outputs = 0;  ///< of the whole product
  float scale = 1;
  AdapterRows rows_of;

  [[nodiscard]] bool given() const { return a_RK.given(); }
  [[nodiscard]] AdapterWeights rows(std::int64_t first, std::int64_t rows_count) const {
    AdapterWeights part = *this;
    for (TensorView* const view : {&part.rows_of.us_TR, &part.rows_of.du_TR})
      if (view->given()) *view = view->rows(first, rows_count);
    return part;
  }
};
/// `product`: the range of the weight beside which they stand.
AdapterWeights weights_of(const ParamStore::Lease& lease, const AdapterParams& params,
                          ParamRange product);

struct AdapterGradients {
  struct Part {
    Gradients::Product b_NR;
    std::int64_t first = 0;
  };
  Gradients::Product a_RK;
  std::array<Part, kAdaptersMax> parts;
  int count = 0;
  std::int64_t outputs = 0;
  AdapterRows rows_of;
  [[nodiscard]] bool given() const { return a_RK.gradient.given(); }
};
AdapterGradients gradients_of(const Gradients& sink, const AdapterParams& params,
                              ParamRange product, const AdapterRows& rows);

/// What products of adapters take beside their operands; all layers share it.
struct AdapterScratch {
  TensorView memory;  ///< bytes
};
/// For those of a layer. `in_place`: products in fp32 that are not batch-invariant, which add to
/// what is there.
AdapterScratch lay_out_adapters(ArenaCursor& arena, const LayerShape& layer, bool in_place);

/// us, and y += us B^T.
void adapter_forward(Context& context, const AdapterScratch& scratch, TensorView y_TN,
                     ConstTensorView x_TK, const AdapterWeights& weights);
/// du, and dx += du A.
void adapter_backward_input(Context& context, const AdapterScratch& scratch, TensorView dx_TK,
                            ConstTensorView dy_TN, const AdapterWeights& weights);
/// dA and dB.
void adapter_backward_weight(Context& context, const AdapterScratch& scratch,
                             const AdapterGradients& gradients, ConstTensorView dy_TN,
                             ConstTensorView x_TK);

}  // namespace trireme
