#pragma once

#include <memory>
#include <string_view>

#include "comm/communicator.h"

namespace trireme {

/// group.channel(name), but sums of fp32 values are the MPI library's own (MPI_Iallreduce,
/// MPI_Ireduce to each owner), in its order: equal bits only where the library chooses the same
/// algorithm. Sums of bf16 values stay in rank order and fp32. Nothing goes through SharedSlots.
/// Counters hold what a ring sends. For channels of CPU memory. Collective.
std::unique_ptr<Communicator> make_library_sum_channel(Communicator& group, std::string_view name);

}  // namespace trireme
