#pragma once
// What ranks reach of each other, timed: groups of them, then pairs; and their clocks.

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/communicator.h"
#include "device/context.h"
#include "preflight/findings.h"

namespace trireme {

/// Bytes a second that each rank of `channel`, whose ranks are those of `group`, sends in an
/// all-reduce (a ring's); the slowest rank's, on all of them. Collective; 0 on one rank.
double all_reduce_rate(Communicator& group, Communicator& channel, Context& context,
                       std::int64_t bytes);

/// What a rank does in round i of pairs: it meets the rank whose number differs in bit i, so that
/// each meets one at a time, and ceil(log2(ranks)) in all. -1: nobody.
int partner_of(int rank, int round, int ranks);
int pair_rounds(int ranks);
/// Pairs compare where both are on one host or on two, with as many pairs at once on the way there.
std::uint64_t kind_of_pair(int rank, int round, const RankHosts& hosts);

/// Bytes a second each way between this rank and its partner of a round, both sending at once; 0
/// where it has none. Collective over `job`, of whose ranks `channel` is.
double pair_rate(Communicator& job, Communicator& channel, Context& context, int round,
                 std::int64_t bytes);

/// The clocks of `ranks` beside the first one's, half of the shortest round trip being the error;
/// on rank 0, elsewhere empty. `now_ns`: of this rank. Collective.
std::vector<ClockOffset> compare_clocks(Communicator& ranks,
                                        const std::function<std::int64_t()>& now_ns);

}  // namespace trireme
