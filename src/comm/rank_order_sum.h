#pragma once

#include <cstddef>
#include <span>

#include "base/dtype.h"

namespace trireme {

/// out[i] = the sum of s[0][i], s[1][i], ... as a tree of neighbours: that of the first 2^k
/// sources, the largest power below their number, plus that of the rest. Of 3 (s0 + s1) + s2, of 4
/// (s0 + s1) + (s2 + s3): aligned blocks of 2^k sources that are added before give the same bits.
/// It depends on neither the count nor the alignment. `count` values of `dtype`, fp32 or bf16; bf16
/// is added in fp32 and rounded once, to nearest even, and a single source keeps its bits (a NaN
/// becomes quiet). `out` may be a source, not overlap one partly. At least one source. Throws
/// InternalError for another dtype.
void sum_in_rank_order(std::span<const std::byte* const> sources, DType dtype, std::size_t count,
                       std::byte* out);

}  // namespace trireme
