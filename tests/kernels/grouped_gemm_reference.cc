#include "kernels/grouped_gemm_reference.h"

namespace trireme::reference {
namespace {

template <class Body>
void for_each_row(const GroupedCase& sizes, const Body& body) {
  for (std::int64_t g = 0; g < sizes.experts; ++g) {
    const auto first = static_cast<std::size_t>(g * sizes.sources);
    const auto behind = static_cast<std::size_t>((g + 1) * sizes.sources);
    for (std::int64_t r = sizes.begins[first]; r < sizes.begins[behind]; ++r) body(g, r);
  }
}

double at(const std::vector<double>& values, std::int64_t index) {
  return values[static_cast<std::size_t>(index)];
}

}  // namespace

std::vector<double> grouped_gemm(const GroupedCase& sizes, std::vector<double> c,
                                 const std::vector<double>& a, const std::vector<double>& b) {
  const std::int64_t n = sizes.n, k = sizes.m;
  for_each_row(sizes, [&](std::int64_t g, std::int64_t r) {
    for (std::int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (std::int64_t i = 0; i < k; ++i)
        sum +=
            at(a, r * k + i) * at(b, sizes.transpose_b ? (g * n + j) * k + i : (g * k + i) * n + j);
      c[static_cast<std::size_t>(r * n + j)] = sum;
    }
  });
  return c;
}

std::vector<double> grouped_gemm_weights(const GroupedCase& sizes, std::vector<double> c,
                                         const std::vector<double>& a,
                                         const std::vector<double>& b) {
  const std::int64_t m = sizes.m, n = sizes.n;
  for_each_row(sizes, [&](std::int64_t g, std::int64_t r) {
    for (std::int64_t i = 0; i < m; ++i) {
      for (std::int64_t j = 0; j < n; ++j)
        c[static_cast<std::size_t>((g * m + i) * n + j)] += at(a, r * m + i) * at(b, r * n + j);
    }
  });
  return c;
}

}  // namespace trireme::reference
