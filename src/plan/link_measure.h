#pragma once
// What transfers between ranks take, as latency and bandwidth of one rank each way.

#include <span>
#include <vector>

#include "comm/communicator.h"
#include "device/context.h"
#include "plan/cluster_file.h"

namespace trireme {

/// A transfer that was timed: what a rank sends, in how many messages one after the other.
struct TransferSeconds {
  double bytes = 0, messages = 1, seconds = 0;
};

/// Latency from the shortest of each number of messages, bandwidth as the geometric mean of what
/// the others reach behind their latencies. At least one of each.
Cluster::Link link_of(std::span<const TransferSeconds> transfers);

/// All-gathers, reduce-scatters and exchanges with the next rank, of 1 KiB to `bytes_max`, on all
/// ranks of `channel` at once; its operands are in the context's memory. Short ones as a step meets
/// them, one behind some work; others the best of many. Collective. Empty on one rank.
std::vector<TransferSeconds> measure_transfers(Communicator& channel, Context& context,
                                               std::int64_t bytes_max);

}  // namespace trireme
