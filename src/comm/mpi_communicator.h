#pragma once
// A group of ranks over MPI, for host memory. Only src/comm and its tests include this; others see
// Communicator.

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/mpi_engine.h"
#include "comm/reduce_channel.h"

namespace trireme {

/// Two MPI communicators: one for blocking calls, one for started transfers, because the two
/// threads that make them keep no common order. Every MPI call is non-blocking and polled; making
/// and splitting excepted.
class MpiCommunicator final : public Communicator {
 public:
  /// Collective over `group`, which is copied. `segment_bytes` 0: chosen by the number of ranks.
  MpiCommunicator(std::shared_ptr<MpiEngine> engine, MPI_Comm group, std::string name,
                  std::size_t segment_bytes = 0);
  ~MpiCommunicator() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void barrier() override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  std::vector<std::string> all_gather_text(std::string_view mine) override;
  Pending start_all_reduce(std::span<float> values) override;
  std::unique_ptr<Communicator> split(int color) override;
  std::unique_ptr<Communicator> channel(std::string_view name) override;
  [[nodiscard]] TrafficCounters counters() const override { return counters_; }
  /// `channel` with another segment size: for measurements, and to show that bits do not depend on
  /// it.
  std::unique_ptr<Communicator> channel_with_segments(std::string_view name,
                                                      std::size_t segment_bytes);

 private:
  class Blocking;  // one call: recorded, timed
  std::shared_ptr<MpiEngine> engine_;
  std::string name_;
  std::size_t segment_bytes_;
  int rank_ = 0, size_ = 1;
  MpiComm blocking_, transfers_;
  std::unique_ptr<ReduceChannel> reduce_;  // made by the first transfer
  TrafficCounters counters_;               // of the calling thread
};

}  // namespace trireme
