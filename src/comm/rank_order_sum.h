#pragma once

#include <cstddef>
#include <span>

namespace trireme {

/// out[i] = ((s[0][i] + s[1][i]) + s[2][i]) + ...: in the order of `sources`, whatever the piece or
/// the alignment. `out` may be one of the sources, and must not overlap one partly. At least one
/// source.
void sum_in_rank_order(std::span<const float* const> sources, std::size_t count,
                       float* out) noexcept;

}  // namespace trireme
