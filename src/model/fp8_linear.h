#pragma once
// The products of linear.h with fp8 operands: activations and gradients are quantised where a
// product reads them, from the bf16 values that it would read itself; weights stand in fp8.
//
//                      a [M, K]          b [N, K]         scales: tensor     block
//   y = x W^T          x                 W                one | one          1 x 128 | 128 x 128
//   dx = dy W          dy                W^T              one | one          1 x 128 | 128 x 128
//   dW = dy^T x        dy^T              x^T              one | one          1 x 128 | 1 x 128
//
// x and W are e4m3, dy is Fp8Precision::gradients. Projections that lie together (q, k, v; gate,
// up) have scales of their own in W and in dy.

#include <vector>

#include "config/run_config.h"
#include "kernels/quantize/quantize.h"
#include "model/linear.h"
#include "parallel/tensor_axis.h"
#include "tensor/arena.h"

namespace trireme {

/// What quantised operands of a layer's products take; all layers share it.
struct Fp8Scratch {
  TensorView memory;  ///< bytes
};
/// For products of `tokens` rows between the input and output columns of a linear.
struct Fp8Widths {
  std::int64_t tokens = 0, in = 0, out = 0;
  int tensor_extent = 1;
  bool together = false;  ///< backward_both is used
  std::int64_t kept = 0;  ///< columns of a gradient that stands there in both orders meanwhile
};
/// For any one of these, or for so many bytes of products of another kind.
Fp8Scratch lay_out_fp8(ArenaCursor& arena, const std::vector<Fp8Widths>& linears,
                       std::int64_t others = 0);
/// Bytes of Fp8Products::gradient_codes, of parts from the beginning of a block.
std::int64_t fp8_gradient_bytes(std::int64_t tokens, std::int64_t columns);

/// `weights` as they are or, of those in fp8 or NF4, with their values in `memory`, rounded to its
/// type.
LinearWeights widen(Context& context, const LinearWeights& weights, TensorView memory);

/// What a product of `tokens` rows joins over the tensor axis: maxima (i32) that each rank has, 0
/// where it joins none. Of operands along their columns, or (dW) along tokens.
std::int64_t fp8_joined_rows(Fp8Recipe recipe, const ScaleDim& columns, const TensorCut& cut,
                             std::int64_t tokens, int tensor_extent);
std::int64_t fp8_joined_columns(Fp8Recipe recipe, const ScaleDim& columns, const TensorCut& cut,
                                int tensor_extent);
/// Bytes of x's operand in forward_gathered, all rows.
struct Fp8Gathered {
  std::int64_t codes = 0, scales = 0, maxima = 0;  ///< maxima: of one rank
};
Fp8Gathered fp8_gathered(Fp8Recipe recipe, const ScaleDim& columns, std::int64_t tokens);

/// Of rows that have their own scales, or one all together.
QuantizedView rows_of(const QuantizedView& of, std::int64_t first, std::int64_t count);

/// What the norm before a column-parallel product makes in the residual rows of n [T, C].
struct NormedRows {
  TensorView n_TC;
  QuantizedOutput quantized = {};  ///< codes: in n's memory and place
};
/// What a product reads: rows or, where what makes them has left none, their codes.
struct ProductInput {
  ConstTensorView x_TK;
  ConstQuantizedView codes = {};
};
/// A gradient dy as both of its products read it.
struct BothOrders {
  QuantizedView along, across;  ///< of dy, of dy^T
  TensorView rows_TN = {};      ///< dy itself, where a bias has a gradient
  [[nodiscard]] bool given() const { return along.given(); }
};

struct Fp8Products {
  Context& context;
  const TensorAxis& tensor;
  const Fp8Precision& precision;
  Fp8Scratch scratch;

  void forward(TensorView y_TN, ConstTensorView x_TK, const LinearWeights& weights,
               const LinearEpilogue& epilogue) const;
  /// The same from the residual rows of n alone: under sequence parallelism each rank's are
  /// gathered as codes, half of what they are in bf16. n's other rows stay as they are.
  void forward_gathered(TensorView y_TN, const NormedRows& n, const LinearWeights& weights,
                        const LinearEpilogue& epilogue) const;
  /// n as forward_gathered reads it where nothing else does: in blocks codes, which the norm makes
  /// in n's memory if that has room for them.
  [[nodiscard]] NormedRows normed_rows(TensorView n_TC, const LinearWeights& weights) const;
  /// Codes of x [tokens, K], in the scratch memory, for the op that makes x just before the forward
  /// product of them. Given in blocks of which this rank has all columns.
  [[nodiscard]] QuantizedView input_codes(std::int64_t tokens, const LinearWeights& weights) const;
  void forward(TensorView y_TN, const ConstQuantizedView& x, const LinearWeights& weights,
               const LinearEpilogue& epilogue) const;
  void backward_input(TensorView dx_TK, ConstTensorView dy_TN, const LinearWeights& weights,
                      const LinearEpilogue& epilogue) const;
  void backward_weight(const LinearGradients& gradients, ConstTensorView dy_TN,
                       ConstTensorView x_TK) const;
  /// Both, with the same bits, from one reading of dy. `x()`, which may use no Fp8Products, gives
  /// what the product read, when dx is there.
  template <class X>
  void backward_both(TensorView dx_TK, ConstTensorView dy_TN, const LinearWeights& weights,
                     const LinearEpilogue& epilogue, const LinearGradients& gradients,
                     const X& x) const {
    const Turned turned = backward_input_and_turn(dx_TK, {dy_TN, {}}, weights, epilogue, gradients);
    backward_weight(gradients, turned, x());
    add_bias(gradients, dy_TN);
  }
  /// Codes of dy [tokens, N] in both orders, `apart` or at the beginning of the scratch memory, for
  /// the op that makes dy before both products of them. Given in blocks on one tensor-parallel
  /// rank, where the weight is trained and no adapter reads dy; rows for a bias are the op's.
  [[nodiscard]] BothOrders gradient_codes(std::int64_t tokens, const LinearGradients& gradients,
                                          TensorView apart = {}) const;
  void backward_input(TensorView dx_TK, const BothOrders& dy, const LinearWeights& weights) const;
  void backward_weight(const LinearGradients& gradients, const BothOrders& dy,
                       ConstTensorView x_TK) const;
  /// Of rows dy again, while `kept` stands: what the weight's gradient reads is made behind dx,
  /// `make(codes of x^T)`.
  template <class Make>
  void backward_both_making(TensorView dx_TK, ConstTensorView dy_TN, const LinearWeights& weights,
                            const LinearGradients& gradients, const BothOrders& kept,
                            const Make& make) const {
    const Turned turned = backward_input_and_turn(dx_TK, {dy_TN, kept}, weights, {}, gradients);
    const QuantizedView x = turned_input(turned, dy_TN.shape[0], gradients);
    make(x);
    backward_weight(gradients, turned.dy, x);
    add_bias(gradients, dy_TN);
  }

 private:
  /// dy^T as W reads it, which stands at the beginning of the scratch memory, and what is free
  /// there.
  struct Turned {
    ConstQuantizedView dy;  ///< not given where the weight has no gradient
    ArenaCursor behind;
  };
  class Operands;
  [[nodiscard]] bool begins_with_block(const ScaleDim& columns) const;
  void forward(TensorView y_TN, const ConstQuantizedView& x, Operands& operands,
               const LinearWeights& weights, const LinearEpilogue& epilogue) const;
  void backward_input(TensorView dx_TK, const ConstQuantizedView& dy, Operands& operands,
                      const LinearWeights& weights, const LinearEpilogue& epilogue) const;
  /// Rows, and what stands in the beginning of the scratch memory meanwhile.
  struct Rows {
    ConstTensorView dy_TN;
    BothOrders kept;
  };
  Turned backward_input_and_turn(TensorView dx_TK, const Rows& dy, const LinearWeights& weights,
                                 const LinearEpilogue& epilogue,
                                 const LinearGradients& gradients) const;
  [[nodiscard]] QuantizedView turned_input(const Turned& turned, std::int64_t tokens,
                                           const LinearGradients& gradients) const;
  void backward_weight(const LinearGradients& gradients, const Turned& turned,
                       ConstTensorView x_TK) const;
  void backward_weight(const LinearGradients& gradients, const ConstQuantizedView& dy,
                       const ConstQuantizedView& x) const;
  void add_bias(const LinearGradients& gradients, ConstTensorView dy_TN) const;
};

}  // namespace trireme
