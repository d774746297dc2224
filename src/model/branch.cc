#include "model/branch.h"

namespace trireme {

BranchWeights weights_of(const ParamStore::Lease& lease, const BranchParams& params) {
  return {weights_of(lease, params.norm), weights_of(lease, params.post_norm),
          weights_of(lease, params.in), weights_of(lease, params.out)};
}

void column_parallel_forward(const LayerPass& pass, TensorView y_TN, TensorView x_TC,
                             const LinearWeights& weights, const LinearEpilogue& epilogue) {
  if (weights.fp8 != nullptr && pass.fp8 != nullptr) {
    if (pass.tensor.residual_tokens(x_TC.shape[0]) < x_TC.shape[0])
      return pass.fp8->forward_gathered(y_TN, x_TC, weights, epilogue);
    return pass.linear_forward(y_TN, x_TC, weights, epilogue);  // a scale is that of all rows
  }
  pass.tensor.use_gathered(
      x_TC, pass.tensor.start_all_gather(x_TC), [&](std::int64_t first, std::int64_t count) {
        const auto then = [&](Context& context, std::int64_t begin, std::int64_t rows) {
          epilogue.then(context, first + begin, rows);
        };
        LinearEpilogue part = epilogue.rows(first, count);
        if (epilogue.then.given()) part.then = then;
        pass.linear_forward(y_TN.rows(first, count), x_TC.rows(first, count), weights, part);
      });
}

void column_parallel_forward_and_keep(const LayerPass& pass, TensorView y_TN, TensorView x_TC,
                                      const LinearWeights& weights) {
  if (weights.fp8 == nullptr) return column_parallel_forward(pass, y_TN, x_TC, weights);
  pass.tensor.start_all_gather(x_TC).wait();
  pass.linear_forward(y_TN, x_TC, weights);
}

void row_parallel_forward(const LayerPass& pass, TensorView y_TC, ConstTensorView x_TN,
                          LinearWeights weights, TensorView scratch_TC, RowsFunction then) {
  if (pass.tensor.extent() == 1) {
    LinearEpilogue epilogue;
    epilogue.then = then;
    return pass.linear_forward(y_TC, x_TN, weights, epilogue);
  }
  if (!pass.tensor.first()) weights.bias = {};
  if (weights.fp8 != nullptr) {
    pass.linear_forward(y_TC, x_TN, weights);
    pass.tensor.reduce(y_TC);
  } else {
    pass.tensor.make_reduced(
        pass.context, y_TC, scratch_TC, [&](std::int64_t first, std::int64_t count) {
          pass.linear_forward(y_TC.rows(first, count), x_TN.rows(first, count), weights);
        });
  }
  if (then.given()) then(pass.context, 0, pass.tensor.residual_rows(y_TC).shape[0]);
}

}  // namespace trireme
