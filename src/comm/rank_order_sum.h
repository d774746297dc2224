#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace trireme {

/// out[i] = ((s[0][i] + s[1][i]) + s[2][i]) + ...: in the order of `sources`, whatever the count or
/// the alignment. `count` values of `dtype`, fp32 or bf16; bf16 is added in fp32 and rounded once,
/// to nearest even, and a single source keeps its bits (a NaN becomes quiet). `out` may be a
/// source, not overlap one partly. At least one source. Throws InternalError for another dtype.
void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, std::size_t count,
                       std::byte* out);

}  // namespace trireme
