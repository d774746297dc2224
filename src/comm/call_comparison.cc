#include "comm/call_comparison.h"

#include "comm/backoff.h"

namespace trireme {

void CallComparison::post(MpiEngine& engine, std::span<const int> names, int me,
                          const Descriptor& mine) {
  // Nobody else sends messages between ranks of the job's own communicator.
  constexpr int kTag = 0;
  mine_ = mine;
  by_rank_.assign(names.size(), mine);
  requests_.clear();
  const std::lock_guard lock(engine.mutex());
  for (std::size_t rank = 0; rank < names.size(); ++rank) {
    if (static_cast<int>(rank) == me) continue;
    check_mpi(MPI_Irecv(&by_rank_[rank], sizeof(Descriptor), MPI_BYTE, names[rank], kTag,
                        MPI_COMM_WORLD, &requests_.emplace_back()),
              "comparing calls: MPI_Irecv");
    check_mpi(MPI_Isend(&mine_, sizeof(Descriptor), MPI_BYTE, names[rank], kTag, MPI_COMM_WORLD,
                        &requests_.emplace_back()),
              "comparing calls: MPI_Isend");
  }
}

bool CallComparison::done(MpiEngine& engine) {
  int done = 0;
  const std::lock_guard lock(engine.mutex());
  check_mpi(
      MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &done, MPI_STATUSES_IGNORE),
      "comparing calls: MPI_Testall");
  return done != 0;
}

void CallComparison::wait(MpiEngine& engine) {
  Backoff backoff;
  while (!done(engine)) backoff.pause();
}

void CallComparison::check(std::span<const int> names, int me, std::string_view channel) const {
  compare_descriptors(by_rank_, {}, me, names, channel);
}

}  // namespace trireme
