#pragma once
// How this process was started: alone, or as one of several ranks by mpirun or srun.

#include <memory>

#include "comm/communicator.h"

namespace trireme {

/// Owns MPI from initialisation to finalisation. Alone (no launcher's variable says otherwise) MPI is never touched.
class Launch {
 public:
  /// Throws EnvironmentError where the launcher's variables name more ranks than MPI sees (srun without pmix, a foreign
  /// mpiexec), with what to type instead.
  Launch();
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  [[nodiscard]] Communicator& world() const { return *world_; }
  /// Rank and number of ranks on this host.
  [[nodiscard]] int local_rank() const { return local_rank_; }
  [[nodiscard]] int local_size() const { return local_size_; }

  /// Ends every rank of the job with `code`; does not return. Safe from any thread and during unwinding.
  [[noreturn]] void abort(int code) noexcept;

 private:
  std::unique_ptr<Communicator> world_;
  int local_rank_ = 0, local_size_ = 1;
  bool mpi_ = false;
};

}  // namespace trireme
