#include "kernels/grouped_gemm/grouped_gemm_checks.h"

#include "kernels/common/check_segments.h"

namespace trireme::grouped_gemm_internal {

void check_begins(const ArgumentChecker& check, const Context& context, ConstTensorView begins,
                  std::int64_t sources, std::int64_t experts, std::int64_t most) {
  check.that(sources > 0, "sources", "an expert has one segment or more");
  check_segments(check, context, begins, experts * sources, most);
}

Counts counts_of(const Context& context, ConstTensorView begins, std::int64_t sources,
                 Counts most) {
  if (context.on_gpu()) return most;
  const auto* begin = begins.as<std::int32_t>();
  Counts counts{0, 0};
  for (std::int64_t expert = 0; expert < most.experts; ++expert) {
    const std::int64_t rows = begin[(expert + 1) * sources] - begin[expert * sources];
    counts.rows += rows;
    counts.experts += rows > 0 ? 1 : 0;
  }
  return counts;
}

}  // namespace trireme::grouped_gemm_internal
