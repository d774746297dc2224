#pragma once
// What grouped products of any operands ask of the table of rows.

#include "device/context.h"
#include "kernels/common/check_args.h"
#include "tensor/tensor_view.h"

namespace trireme::grouped_gemm_internal {

/// What a host knows of a table in a GPU's memory is its length.
void check_begins(const ArgumentChecker& check, const Context& context, ConstTensorView begins,
                  std::int64_t sources, std::int64_t experts, std::int64_t most);

/// Rows, and experts that have some. In a GPU's memory no host sees them: all that there may be.
struct Counts {
  std::int64_t rows, experts;
};
Counts counts_of(const Context& context, ConstTensorView begins, std::int64_t sources, Counts most);

}  // namespace trireme::grouped_gemm_internal
