#pragma once
// y = x W^T + b with W [out, in], or y = x W + b with W [in, out] (GPT-2). Backward in two halves.

#include "kernels/gemm/gemm.h"
#include "model/adapter.h"
#include "model/param_table.h"
#include "store/param_store.h"

namespace trireme {

struct LinearWeights {
  ConstTensorView weight, bias;  ///< bias may be absent
  bool in_out = false;
  /// In fp8 or NF4, in place of `weight`: what the lease, which must outlive this, has of `range`.
  const Fp8Columns* fp8 = nullptr;
  bool nf4 = false;
  const ParamStore::Lease* lease = nullptr;
  ParamRange range = {};
  AdapterWeights adapter = {};
  /// [1] i32, where it is kept for W: the largest magnitude of what an fp8 product reads, as what
  /// makes that leaves it.
  TensorView x_amax_1 = {};
  TensorView dy_amax_P = {};  ///< of the gradient of its result: of each projection
  /// Of a product of those rows alone.
  [[nodiscard]] LinearWeights rows(std::int64_t first, std::int64_t count) const {
    LinearWeights part = *this;
    part.adapter = adapter.rows(first, count);
    return part;
  }
};
struct LinearGradients {
  Gradients::Product weight;
  TensorView bias;  ///< added to
  bool in_out = false;
  const Fp8Columns* fp8 = nullptr;  ///< where the product is one of fp8
  AdapterGradients adapter = {};
  TensorView x_amax_1 = {}, dy_amax_P = {};  ///< LinearWeights
};

LinearWeights weights_of(const ParamStore::Lease& lease, const LinearParams& params);
/// `rows`: what the adapters' products have left.
LinearGradients gradients_of(const Gradients& sink, const LinearParams& params,
                             const AdapterRows& rows = {});

/// What follows a product in the same pass over its result, as Gemm has it.
struct LinearEpilogue {
  GemmEpilogue kind = GemmEpilogue::kNone;
  ConstTensorView operand = {};
  TensorView saved = {};
  RowsFunction then = {};
  TensorView amax_P = {};  ///< of a product in fp8 (QuantizedGemm)
  /// For those rows of the product alone; without `then`.
  [[nodiscard]] LinearEpilogue rows(std::int64_t first, std::int64_t count) const {
    LinearEpilogue part = *this;
    part.then = {};
    if (operand.given()) part.operand = operand.rows(first, count);
    if (saved.given()) part.saved = saved.rows(first, count);
    return part;
  }
};
void linear_forward(Context& context, TensorView y_TN, ConstTensorView x_TK,
                    const LinearWeights& weights, const LinearEpilogue& epilogue = {});
/// B: dx = dy W
void linear_backward_input(Context& context, TensorView dx_TK, ConstTensorView dy_TN,
                           const LinearWeights& weights, const LinearEpilogue& epilogue = {});
/// W: dW = dy^T x or dW += dy^T x, db += sum_t dy, of what is trained. Needs no weights.
void linear_backward_weight(Context& context, const LinearGradients& gradients,
                            ConstTensorView dy_TN, ConstTensorView x_TK);

}  // namespace trireme
