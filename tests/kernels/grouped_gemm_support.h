#pragma once
// Operands of products of experts, as their tests share them.

#include <string>
#include <vector>

#include "kernels/grouped_gemm/grouped_gemm.h"
#include "kernels/grouped_gemm_reference.h"
#include "kernels/support/op_test.h"

namespace trireme {

using Begins = std::vector<std::int64_t>;

TestTensor table(const Begins& begins);

/// Operands of all that a test asks of some experts, with rows behind the last segment; `offset` as
/// in TestTensor.
struct Experts {
  struct Place {
    std::int64_t rows_behind = 3;
    int offset = TestTensor::kOffsetByEnvironment;
  };
  reference::GroupedCase sizes;
  std::int64_t rows;
  TestTensor begins, a, b, c, right, gradients;

  Experts(DType type, const reference::GroupedCase& of, const Place& place);
  Experts(DType type, std::int64_t k, std::int64_t n, const Begins& segments,
          std::int64_t sources = 1, bool transpose_b = false);

  GroupedGemm product();
  GroupedGemmWeights weights(Accumulate accumulate);
  [[nodiscard]] std::string name() const;
};

}  // namespace trireme
