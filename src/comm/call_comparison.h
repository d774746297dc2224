#pragma once
// One call of this rank beside those that the other ranks of its group make: what
// `run.check_collectives` does before a collective begins.
//
// Between two ranks the descriptors of all collectives that either makes with the other in its
// group, of all channels, blocking or started, go one way to and fro, in the order of the ranks'
// main threads. So a rank in a barrier and one in another channel's transfer meet at once, where
// each would wait for ever for its own kind. Only src/comm includes this.

#include <span>
#include <string_view>
#include <vector>

#include "comm/collective_check.h"
#include "comm/mpi_engine.h"

namespace trireme {

class CallComparison {
 public:
  /// `names`: the group's ranks as ranks of the job; `me`: this one's rank in it. By the main
  /// thread, once for each call. This stays where it is until done.
  void post(MpiEngine& engine, std::span<const int> names, int me, const Descriptor& mine);
  /// All of the group have made a call with this rank.
  bool done(MpiEngine& engine);
  /// Waits for that.
  void wait(MpiEngine& engine);
  /// Throws InternalError where they differ: compare_descriptors.
  void check(std::span<const int> names, int me, std::string_view channel) const;

 private:
  Descriptor mine_;
  std::vector<Descriptor> by_rank_;
  std::vector<MPI_Request> requests_;
};

}  // namespace trireme
