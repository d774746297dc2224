#pragma once
// The formula of kernels/gemm/gemm.h as scalar loops in double.

#include <cstdint>
#include <vector>

namespace trireme::reference {

struct GemmCase {
  std::int64_t m, n, k;
  bool transpose_a = false, transpose_b = false;
};
/// c[i, j] = start[i, j] + sum_k op(a)[i, k] op(b)[k, j]
std::vector<double> gemm(const GemmCase& sizes, std::vector<double> start,
                         const std::vector<double>& a, const std::vector<double>& b);

}  // namespace trireme::reference
