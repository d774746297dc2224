#include "kernels/grouped_gemm_support.h"

#include <fmt/ranges.h>

namespace trireme {

TestTensor table(const Begins& begins) {
  return TestTensor::of(DType::kI32, {std::ssize(begins)}, {begins.begin(), begins.end()});
}

Experts::Experts(DType type, const reference::GroupedCase& of, const Place& place)
    : sizes(of),
      rows(of.begins.back() + place.rows_behind),
      begins(table(of.begins)),
      a(TestTensor::random(type, {rows, of.m}, 1, 1, place.offset)),
      b(TestTensor::random(
          type, of.transpose_b ? Shape{of.experts, of.n, of.m} : Shape{of.experts, of.m, of.n}, 2,
          1, place.offset)),
      c(TestTensor::random(type, {rows, of.n}, 3, 1, place.offset)),
      right(TestTensor::random(type, {rows, of.n}, 4, 1, place.offset)),
      gradients(TestTensor::random(DType::kF32, {of.experts, of.m, of.n}, 5, 1, place.offset)) {}

Experts::Experts(DType type, std::int64_t k, std::int64_t n, const Begins& segments,
                 std::int64_t sources, bool transpose_b)
    : Experts(type, {(std::ssize(segments) - 1) / sources, k, n, transpose_b, segments, sources},
              {}) {}

GroupedGemm Experts::product() {
  return {c, a, b, sizes.transpose_b ? Transpose::kYes : Transpose::kNo, begins, sizes.sources};
}
GroupedGemmWeights Experts::weights(Accumulate accumulate) {
  return {gradients, a, right, accumulate, begins, sizes.sources};
}
std::string Experts::name() const {
  return fmt::format("{} [{}, {}] {} transposed {}: {}", name_of(a.dtype()), sizes.m, sizes.n,
                     sizes.sources, sizes.transpose_b, fmt::join(sizes.begins, " "));
}

}  // namespace trireme
