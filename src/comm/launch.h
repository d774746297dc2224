#pragma once
// How this process was started: alone, or as one of several ranks by mpirun or srun.

#include <memory>
#include <span>
#include <string>

#include "comm/communicator.h"
#include "comm/flight_recorder.h"
#include "comm/transfer_faults.h"

namespace trireme {

class MpiEngine;

/// Owns MPI from initialisation to finalisation. Alone (no launcher's variable says otherwise) MPI
/// is never touched. Outlives every communicator made from it. Catch errors inside its scope:
/// destroyed by unwinding it does not finalize, as others may never do so; end them with `abort`.
class Launch {
 public:
  /// Throws EnvironmentError where the launcher's variables name more ranks than MPI sees (srun
  /// without pmix, a foreign mpiexec), with what to type instead.
  Launch();
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  /// Whether this process has begun with MPI, whatever became of it: that happens once.
  [[nodiscard]] static bool has_begun();

  /// Every process of the job: what it starts with, which hosts they are on, how it ends.
  [[nodiscard]] Communicator& job() const { return *job_; }
  /// The ranks that train one model in step, a part of the job: its mesh, and every decision of a
  /// step (loss, norm, skip, stop, save), are theirs alone. So far all of the job.
  [[nodiscard]] Communicator& replica() const { return *job_; }
  /// The ranks of this host, ordered as in the job.
  [[nodiscard]] Communicator& host() const { return *host_; }
  /// Rank and number of ranks on this host.
  [[nodiscard]] int local_rank() const { return host_->rank(); }
  [[nodiscard]] int local_size() const { return host_->size(); }
  [[nodiscard]] const std::string& host_name() const { return host_name_; }
  /// Every collective and transfer of this process; empty for ever where it is alone.
  [[nodiscard]] const FlightRecorder& flight_recorder() const { return recorder_; }
  [[nodiscard]] FlightRecorder& flight_recorder() { return recorder_; }
  /// What connections of this process have found out behind our calls.
  [[nodiscard]] TransferFaults& transfer_faults() { return faults_; }

  /// Whether the ranks compare order, kind and size of every collective and transfer before it
  /// begins, in the job, the host and all that is made of them from now on: two ranks in
  /// different places of the program are then named by an InternalError on every rank of the group
  /// (for an exchange, at both ends), where they would hang or mix their bytes. A blocking call on
  /// one rank and a transfer on another do not meet, and still hang. Costs a round of small
  /// messages each time. Every rank calls it at the same place.
  void check_collectives(bool on);

  /// The ranks of the host are kept on cores: this one stays awake while it waits for others.
  void wait_awake();
  /// Keeps the thread that moves transfers on these CPUs.
  void keep_communication_on(std::span<const int> cpus);

  /// Ends every rank of the job with `code`; does not return. Safe on any thread, also unwinding.
  [[noreturn]] void abort(int code) noexcept;

 private:
  void start_mpi();

  FlightRecorder recorder_;
  TransferFaults faults_;
  std::string host_name_;
  std::shared_ptr<MpiEngine> engine_;  // null: alone
  std::unique_ptr<Communicator> job_, host_;
};

/// "Open MPI v4.1.4": the library of this build.
std::string mpi_library_name();

}  // namespace trireme
