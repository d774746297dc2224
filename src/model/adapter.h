#pragma once
// Adapters beside a linear product (AdapterConfig):
//   us = s x A^T          y += us B^T          du = s dy B          dx += du A
//   dA = du^T x           dB = dy^T us
// A of all adapters of a product lie together, so that x and dx are met once. B of several
// projections (q, k, v) are blocks of one matrix [outputs, ranks], zero elsewhere.
//
// With magnitudes (kernels/magnitude) the product and its adapters make v, without the bias:
//   gain = m / |W + s B A| by row     y = gain v + bias     dv = gain dy in place of dy
//   dm = sum_t dy v / |W + s B A|
//
// In training dropout may leave less of x for A alone: x' in place of x, and what it kept of du A
// in place of du A. A token's number, the column and the product's stream alone choose: cuts,
// passes and recomputation see the same x'. Adapters of one product read the same.
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

/// us and du [T, ranks], in the compute type: from F to W, and from B. With magnitudes v [T, N],
/// and of each output gain, 1 / |W + s B A| and |W + s B A|^2 [3, N] f32, gain 1 where it has no
/// adapter.
struct AdapterRows {
  TensorView us_TR, du_TR, v_TN, gains_3N;

  [[nodiscard]] TensorView gain() const { return row(0); }
  [[nodiscard]] TensorView inverse() const { return row(1); }
  [[nodiscard]] TensorView squares() const { return row(2); }

 private:
  [[nodiscard]] TensorView row(std::int64_t which) const {
    return gains_3N.rows(which, 1).reshape({gains_3N.shape[1]});
  }
};
inline AdapterRows with_gradient(AdapterRows rows, const TensorView& du_TR) {
  rows.du_TR = du_TR;
  return rows;
}
inline TensorSize adapter_gain_rows(std::int64_t outputs) { return {DType::kF32, {3, outputs}}; }

inline TensorSize adapter_rows(const TensorSize& product, std::int64_t ranks) {
  return {product.dtype, {product.shape[0], ranks}};
}

inline constexpr int kAdaptersMax = 3;  ///< q, k, v

struct AdapterWeights {
  struct Part {
    ConstTensorView b_NR;
    std::int64_t first = 0;  ///< of the product's outputs, the projection's first
    ConstTensorView magnitude_N = {};
  };
  ConstTensorView a_RK;
  std::array<Part, kAdaptersMax> parts;
  int count = 0;
  std::int64_t outputs = 0;  ///< of the whole product
  float scale = 1;
  AdapterRows rows_of;
  DropoutStream dropout = {};
  std::int64_t first_row = 0;  ///< of the product's, where these are a part

  [[nodiscard]] bool given() const { return a_RK.given(); }
  [[nodiscard]] bool magnitudes() const { return parts[0].magnitude_N.given(); }
  [[nodiscard]] AdapterWeights rows(std::int64_t first, std::int64_t rows_count) const {
    AdapterWeights part = *this;
    part.first_row += first;
    for (TensorView* const view : {&part.rows_of.us_TR, &part.rows_of.du_TR, &part.rows_of.v_TN})
      if (view->given()) *view = view->rows(first, rows_count);
    return part;
  }
};
/// Whether the rows that follow a weight's (ParamMeta::row_alignment) are its product's outputs
/// too.
enum class RowPadding : std::uint8_t { kLeftOut, kTaken };
/// `product`: the range of the weight beside which they stand.
AdapterWeights weights_of(const ParamStore::Lease& lease, const AdapterParams& params,
                          ParamRange product, RowPadding padding = RowPadding::kLeftOut);

struct AdapterGradients {
  struct Part {
    Gradients::Product b_NR;
    std::int64_t first = 0;
    TensorView magnitude_N = {};  ///< added to
  };
  Gradients::Product a_RK;
  std::array<Part, kAdaptersMax> parts;
  int count = 0;
  std::int64_t outputs = 0;
  AdapterRows rows_of;
  DropoutStream dropout = {};
  [[nodiscard]] bool given() const { return a_RK.gradient.given(); }
};
AdapterGradients gradients_of(const Gradients& sink, const AdapterParams& params,
                              ParamRange product, const AdapterRows& rows,
                              RowPadding padding = RowPadding::kLeftOut);

/// Of a pass in training, where a share is dropped.
struct AdapterDropout {
  double share = 0;
  ConstTensorView numbers_T2;  ///< of the rows (MicroBatch::numbers); not given: nothing is dropped
  std::int64_t tensor_rank = 0;  ///< whose columns an input that the tensor axis cuts has here
};
/// What products of adapters take beside their operands; all layers share its memory.
struct AdapterScratch {
  TensorView memory;  ///< bytes
  AdapterDropout dropout = {};
};
/// A product, its adapters and their passes.
struct AdaptedProduct {
  std::int64_t tokens = 0, in = 0, out = 0, ranks = 0;
  DType compute = DType::kF32, result = DType::kF32;  ///< of its operands, of y
  bool magnitudes = false, dropout = false;
  /// Sums in fp32 are not batch-invariant: products add to what is there.
  bool in_place = false;
  bool joined = true;  ///< B may have to be (kAdaptersMax)
};
/// Of the scratch that it takes.
std::size_t adapter_scratch_bytes(const AdaptedProduct& product);
/// For those of a layer.
AdapterScratch lay_out_adapters(ArenaCursor& arena, const LayerShape& layer, bool in_place);

/// us, and y += us B^T.
void adapter_forward(Context& context, const AdapterScratch& scratch, TensorView y_TN,
                     ConstTensorView x_TK, const AdapterWeights& weights);
/// dv, which stands in scratch, or dy where there are no magnitudes.
ConstTensorView adapter_magnitude_gradient(Context& context, const AdapterScratch& scratch,
                                           ConstTensorView dy_TN, const AdapterWeights& weights);
/// du, from dv.
void adapter_backward_ranks(Context& context, const AdapterScratch& scratch, ConstTensorView dv_TN,
                            const AdapterWeights& weights);
/// dx += du A. What stands in scratch is lost.
void adapter_backward_input(Context& context, const AdapterScratch& scratch, TensorView dx_TK,
                            const AdapterWeights& weights);
/// dA, dB and dm. Leaves dv in scratch where adapter_magnitude_gradient does.
void adapter_backward_weight(Context& context, const AdapterScratch& scratch,
                             const AdapterGradients& gradients, ConstTensorView dy_TN,
                             ConstTensorView x_TK);

/// squares, of this rank's columns of W [N, K], or [K, N] with in_out.
void adapter_row_squares(Context& context, const AdapterScratch& scratch, ConstTensorView weight,
                         bool in_out, const AdapterWeights& weights);
/// The gains from those, whole.
void adapter_gains(Context& context, const AdapterWeights& weights);

}  // namespace trireme
