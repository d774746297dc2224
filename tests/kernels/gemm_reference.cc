#include "kernels/gemm_reference.h"

namespace trireme::reference {

std::vector<double> gemm(const GemmCase& sizes, std::vector<double> start,
                         const std::vector<double>& a, const std::vector<double>& b) {
  const auto [m, n, k, ta, tb] = sizes;
  for (std::int64_t i = 0; i < m; ++i) {
    for (std::int64_t j = 0; j < n; ++j) {
      for (std::int64_t l = 0; l < k; ++l) {
        start[static_cast<std::size_t>(i * n + j)] +=
            a[static_cast<std::size_t>(ta ? l * m + i : i * k + l)] *
            b[static_cast<std::size_t>(tb ? j * k + l : l * n + j)];
      }
    }
  }
  return start;
}

}  // namespace trireme::reference
