#pragma once
// The formulas of kernels/grouped_gemm/grouped_gemm.h as scalar loops in double.

#include <cstdint>
#include <vector>

namespace trireme::reference {

struct GroupedCase {
  std::int64_t experts, m, n;  ///< m: columns of a, K of the products of rows
  bool transpose_b = false;
  std::vector<std::int64_t> begins;  ///< [experts sources + 1]
  std::int64_t sources = 1;
};

/// c[r, j] = sum_k a[r, k] op(b_g)[k, j] for the rows of each expert; others as in `c`.
std::vector<double> grouped_gemm(const GroupedCase& sizes, std::vector<double> c,
                                 const std::vector<double>& a, const std::vector<double>& b);
/// c[g, i, j] += sum_r a[r, i] b[r, j] over the rows of expert g.
std::vector<double> grouped_gemm_weights(const GroupedCase& sizes, std::vector<double> c,
                                         const std::vector<double>& a,
                                         const std::vector<double>& b);

}  // namespace trireme::reference
