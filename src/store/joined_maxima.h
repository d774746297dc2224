#pragma once

#include "comm/communicator.h"
#include "device/context.h"

namespace trireme {

/// Each of `maxima`, i32 bits of magnitudes, becomes the largest that any rank has: each rank joins
/// a part, of which all get what comes out. The ranks divide the count; `received` has room for a
/// part of each other rank, in memory of the same device. Collective.
void join_maxima_of_ranks(Context& context, Communicator& ranks, const TensorView& maxima,
                          const TensorView& received);

/// What a rank sends for so many maxima.
std::int64_t joined_maxima_bytes_sent(std::int64_t count, int ranks);

}  // namespace trireme
