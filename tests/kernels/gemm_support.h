#pragma once
// What the tests of products share: operands, and all the ways in which a product can be made.

#include <functional>
#include <string>
#include <vector>

#include "kernels/gemm/gemm_internal.h"
#include "kernels/gemm_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {

/// Random operands of one product.
struct GemmOperands {
  reference::GemmCase sizes;
  TestTensor a, b, bias, before;
  Gemm args;

  GemmOperands(reference::GemmCase s, DType type, DType c_type);
  [[nodiscard]] std::vector<double> expected(const std::vector<double>& start) const;
  [[nodiscard]] std::vector<double> bias_rows() const;
};

/// Sums of k products of size 1: the error grows with sqrt(k).
Tolerance gemm_tolerance(DType c_type);

/// A way to make a product: the op itself; on a GPU also each of its kernels, with each size of
/// tile.
struct GemmWay {
  std::string name;
  std::function<bool(const Gemm&)> serves;
  std::function<void(const Gemm&)> run;
};
/// They use `context` and live no longer.
std::vector<GemmWay> gemm_ways(Context& context);

}  // namespace trireme
