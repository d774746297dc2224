#include "optim/orthogonalize.h"

#include <algorithm>
#include <cmath>

#include "base/exact_sum.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/gemm/gemm.h"
#include "kernels/grad_norm/grad_norm.h"
#include "kernels/muon/muon.h"

namespace trireme {

namespace {

constexpr int kSteps = 5;
constexpr float kLinear = 3.4445F, kCubic = -4.7750F, kQuintic = 2.0315F;
constexpr double kNormMin = 1e-7;
constexpr const char* kUse = "orthogonalize";

double norm_of(Context& context, const ConstTensorView& matrix) {
  ExactSum squares;
  grad_norm_accumulate(context, squares, {&matrix, 1});
  return std::sqrt(squares.value());
}

}  // namespace

void orthogonalize(Context& context, const OrthogonalizeBuffers& buffers) {
  const auto& [x, sum, gram, square] = buffers;
  const bool wide = x.shape[0] <= x.shape[1];
  cast(context, sum, x);
  auto scale = static_cast<float>(1 / std::max(norm_of(context, sum), kNormMin));
  for (int step = 0; step < kSteps; ++step) {
    newton_schulz_operand(context, x, sum, scale, kLinear);
    scale = 1;
    Gemm product{.c_MN = gram, .a = x, .b = x, .use = kUse};
    (wide ? product.transpose_b : product.transpose_a) = Transpose::kYes;
    gemm(context, product);
    gemm(context, {.c_MN = square, .a = gram, .b = gram, .use = kUse});
    newton_schulz_polynomial(context, gram, square, kCubic, kQuintic);
    gemm(context, {.c_MN = sum,
                   .a = wide ? gram : x,
                   .b = wide ? x : gram,
                   .accumulate = Accumulate::kYes,
                   .use = kUse});
  }
  cast(context, x, sum);
}

double orthogonalize_operations(const Shape& matrix) {
  const auto r = static_cast<double>(std::min(matrix[0], matrix[1])),
             c = static_cast<double>(std::max(matrix[0], matrix[1]));
  return kSteps * (4 * r * r * c + 2 * r * r * r);
}

}  // namespace trireme
