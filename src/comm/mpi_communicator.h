#pragma once
// A group of ranks over MPI, for host memory. Included by src/comm and its tests alone.

#include <memory>
#include <string>

#include "comm/communicator.h"
#include "comm/mpi_engine.h"
#include "comm/rounds.h"
#include "comm/transfer_channel.h"

namespace trireme {

/// Two MPI communicators: for blocking calls and for started transfers, as their two threads keep
/// no common order. MPI calls are non-blocking and polled, but for making and splitting.
class MpiCommunicator final : public Communicator {
 public:
  /// Collective over `group`, which is copied.
  MpiCommunicator(std::shared_ptr<MpiEngine> engine, MPI_Comm group, std::string name,
                  const TransferOptions& options = {});
  ~MpiCommunicator() override;

  [[nodiscard]] int rank() const override { return rank_; }
  [[nodiscard]] int size() const override { return size_; }
  void barrier() override;
  void broadcast(std::span<std::byte> bytes, int root) override;
  void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) override;
  std::vector<std::string> all_gather_text(std::string_view mine) override;
  Pending start_all_reduce(TensorView values) override;
  Pending start_reduce_scatter(TensorView shards) override;
  Pending start_all_gather(TensorView shards) override;
  Pending start_exchange(std::span<const Message> sends,
                         std::span<const Message> receives) override;
  Pending start_combine(std::span<std::byte> value, Combine combine) override;
  std::unique_ptr<Communicator> split(int color) override;
  std::unique_ptr<Communicator> channel(std::string_view name) override;
  [[nodiscard]] bool shares_memory() const override { return shared_ != nullptr; }
  [[nodiscard]] TrafficCounters counters() const override { return counters_; }
  [[nodiscard]] const TransferOptions& options() const { return options_; }
  void compare_calls(Operation operation, DType dtype, std::int64_t bytes) override;
  /// Whether what follows is compared over the ranks before it begins; channels and groups made
  /// from now on inherit it. Every rank calls it at the same place, with no transfer under way.
  void check_collectives(bool on);
  /// `channel` with options that its channels and groups inherit: for measurements and tests.
  std::unique_ptr<Communicator> channel_with_options(std::string_view name,
                                                     const TransferOptions& options);

 private:
  class Blocking;  // one call: recorded, timed
  void compare_calls(Operation operation, DType dtype, std::int64_t bytes, int root);
  /// `pieces` of all ranks from this one on, around the ring, of which the first is there; piece i
  /// begins at begins[i], where all end at the last of `begins`.
  void gather_pieces(Blocking& call, std::span<std::byte> pieces,
                     std::span<const std::int64_t> begins);
  [[nodiscard]] CollectiveId next_id() {
    ++id_.sequence;
    return id_;
  }
  void share_memory();
  TransferChannel& transfers();
  Pending start(Operation operation, TensorView operand);
  Pending pending(TransferChannel::Transfer* transfer);
  std::shared_ptr<MpiEngine> engine_;
  std::string name_;
  TransferOptions options_;
  int rank_ = 0, size_ = 1;
  std::vector<int> job_ranks_;
  MpiComm blocking_, started_;
  std::vector<GatherRound> rounds_;
  std::vector<std::byte> pieces_;  // grow to the largest all_gather, then stay
  std::vector<std::int64_t> begins_;
  std::unique_ptr<SharedSlots> shared_;       // null: not all on one host, or alone
  std::unique_ptr<TransferChannel> channel_;  // made by the first transfer
  TrafficCounters counters_;                  // of the calling thread
  std::int64_t compared_ = 0;                 // calls
  CollectiveId id_;                           // of the newest blocking call
};

}  // namespace trireme
