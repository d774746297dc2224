#pragma once
// Moves bytes between ranks and sums them; knows nothing of tensors' meaning. A communicator is a
// group of ranks; large transfers run beside computation on their channel, small ones block.

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/error.h"
#include "device/memory.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// A transfer under way. `wait` must be called once; its buffers belong to the transfer until then.
class [[nodiscard]] Pending {
 public:
  Pending() = default;
  explicit Pending(std::function<void()> wait) : wait_(std::move(wait)) {}
  /// Blocks until the transfer is done; throws what the transfer met. Harmless on a default object.
  void wait();

 private:
  std::function<void()> wait_;
};

/// What a channel has moved so far, for `train plan`'s figures and the metrics.
struct TrafficCounters {
  std::int64_t bytes_sent = 0;
  std::int64_t transfers = 0;
  std::int64_t exposed_ns = 0;  ///< time that callers spent in `wait` and in blocking calls
};

/// One message of an exchange: what goes to `rank`, or comes from it.
struct Message {
  int rank = 0;
  std::span<std::byte> bytes;
};
inline Message message_of(int rank, const TensorView& values) {
  return {rank, {values.data, values.bytes()}};
}

enum class Operation : std::uint16_t;  // comm/collective_check.h

class Communicator {
 public:
  virtual ~Communicator() = default;
  [[nodiscard]] virtual int rank() const = 0;
  [[nodiscard]] virtual int size() const = 0;

  // Blocking; every rank of the group calls them in the same order.
  virtual void barrier() = 0;
  virtual void broadcast(std::span<std::byte> bytes, int root) = 0;
  /// all = the `mine` of rank 0, of rank 1, ...; equal sizes.
  virtual void all_gather(std::span<const std::byte> mine, std::span<std::byte> all) = 0;
  /// Strings of different lengths, from every rank to every rank.
  virtual std::vector<std::string> all_gather_text(std::string_view mine) = 0;

  // Beside the computation. Every rank of the group starts the same ones in the same order; they
  // run in that order, several at a time. No count but zero is too small, none too large. A
  // refused argument throws InternalError before anything is sent.
  /// values (fp32 or bf16) = the sum over ranks, added in fp32 in rank order (neighbours, then
  /// their neighbours: rank_order_sum.h) and rounded once, whatever the shard sizes: shards to
  /// owners, a local sum, shards back (a ring's bytes).
  virtual Pending start_all_reduce(TensorView values) = 0;
  /// `shards`: size() equal shards in rank order, so the count divides by size(). Afterwards shard
  /// rank() holds the sum (as above) of that shard over ranks; the others are undefined.
  virtual Pending start_reduce_scatter(TensorView shards) = 0;
  /// In place: each rank has filled shard rank() of `shards`; afterwards all are filled. Any dtype.
  virtual Pending start_all_gather(TensorView shards) = 0;
  /// Point to point: sends and receives run together, so no order of theirs on other ranks can
  /// block. Between two ranks messages match in the order of the lists, and must be equally long at
  /// both ends. A message to this rank is copied to its receive. The lists are copied; the bytes
  /// belong to the transfer until its wait. Ranks without a message may leave an exchange out.
  virtual Pending start_exchange(std::span<const Message> sends,
                                 std::span<const Message> receives) = 0;

  /// value = combine(... of rank 0, of rank 1 ...), on every rank: an all-reduce of a small record
  /// that numbers cannot describe. Neighbours combine, then neighbours of those, so that the order
  /// depends on the number of ranks alone; `combine` puts what both say into `lower` and does not
  /// throw. It runs on another thread. (Here: by all_gather, one after the other.)
  using Combine = void (*)(std::span<std::byte> lower, std::span<const std::byte> higher);
  virtual Pending start_combine(std::span<std::byte> value, Combine combine);

  /// `combine(T& lower, const T& higher)` without state, of a T that its bytes make up.
  template <class T, class F>
  Pending start_combined(T& value, F /*combine*/) {
    static_assert(std::is_trivially_copyable_v<T> && std::is_empty_v<F>);
    return start_combine(std::as_writable_bytes(std::span(&value, 1)),
                         [](std::span<std::byte> lower, std::span<const std::byte> higher) {
                           T mine, theirs;
                           std::memcpy(&mine, lower.data(), sizeof mine);
                           std::memcpy(&theirs, higher.data(), sizeof theirs);
                           F{}(mine, theirs);
                           std::memcpy(lower.data(), &mine, sizeof mine);
                         });
  }
  template <class T, class F>
  void combined(T& value, F combine) {
    start_combined(value, combine).wait();
  }

  /// Memory, zero, for operands of started transfers; `device` is that of this channel's memory.
  virtual Memory transfer_memory(Device device, std::size_t bytes);
  /// Until what it returns has ended, transfers may read and write such memory in place, without
  /// copies through memory of the channel's own: of as many bytes on every rank, in which operands
  /// of one collective begin at one offset. No transfer uses it then. Nothing where that gains
  /// nothing. Collective.
  [[nodiscard]] virtual std::shared_ptr<void> register_memory(std::span<std::byte> memory);

  /// A group with the ranks of equal `color`, ordered by rank; every rank of this group calls it.
  virtual std::unique_ptr<Communicator> split(int color) = 0;
  /// The same ranks on a channel of their own: transfers do not queue behind others. Collective.
  virtual std::unique_ptr<Communicator> channel(std::string_view name) = 0;

  [[nodiscard]] virtual TrafficCounters counters() const = 0;
  /// Whether collectives beside computation go through shared memory, cheaper than exchanges.
  [[nodiscard]] virtual bool shares_memory() const { return false; }

  /// Whether a transfer may have to wait for those of other channels that its rank has started
  /// before it (NCCL promises no more, NVIDIA/nccl issue 195): ranks must then start theirs in one
  /// order too.
  [[nodiscard]] virtual bool starts_in_one_order() const { return false; }

  /// Where collectives are checked (Launch::check_collectives): throws InternalError on every rank
  /// of the group where one calls it with other arguments. All collectives here begin with this
  /// comparison; it is public for transfers that go another way (NCCL's). Blocking.
  virtual void compare_calls(Operation /*operation*/, DType /*dtype*/, std::int64_t /*bytes*/) {}

  // Small blocking reductions by all_gather: the same result on every rank, in rank order.
  void sum(std::span<double> values);
  void sum(std::span<std::int64_t> values);
  void maximum(std::span<std::int64_t> values);
  std::string broadcast_text(std::string_view text, int root);
  /// combine(combine(text of rank 0, of rank 1), ...) in rank order, grouped anyhow: on rank 0; ""
  /// elsewhere. Neighbours combine, then neighbours of those: no rank receives more than
  /// log2(size()) texts. `combine` must not throw.
  std::string reduce_text(std::string mine,
                          const std::function<std::string(const std::string& lower,
                                                          const std::string& higher)>& combine);

 protected:
  // What every kind of communicator asks of the operands of `operation`; throw InternalError.
  static void expect_summable(const char* operation, TensorView values);
  void expect_shards(const char* operation, TensorView shards) const;
  void expect_messages(std::span<const Message> sends, std::span<const Message> receives) const;

 private:
  template <class T, class F>
  void reduce(std::span<T> values, const F& combine);
  std::vector<std::byte> gathered_;  // grows to the largest reduction, then stays
};

/// Bytes that rank `rank` of `ranks` sends in an all-reduce of `count` elements: its versions of
/// the others' shards, and the sum of its own shard to each of them. Shards are even_slice's.
std::int64_t all_reduce_bytes_sent(std::int64_t count, DType dtype, int ranks, int rank);
/// In a reduce-scatter or an all-gather of `ranks` equal shards, `bytes` together.
std::int64_t one_way_bytes_sent(std::int64_t bytes, int ranks);

/// Pages of one rank that a channel of `ranks` on one host stages such transfers in, of operands of
/// up to `bytes`: kAllReduce, kReduceScatter or kAllGather.
std::int64_t staging_bytes(Operation operation, std::int64_t bytes, int ranks);

/// The messages of an exchange from `rank` to itself, which have matched.
void copy_own_messages(int rank, std::span<const Message> sends, std::span<const Message> receives);

/// One rank: transfers are nothing, reductions are the identity.
std::unique_ptr<Communicator> make_self_communicator();

/// What run_together throws: on every rank the same. Rank 0 reports it and nobody is aborted; any
/// other error is one rank's, which reports it and ends the others (Launch::abort).
class SharedError : public Error {
 public:
  using Error::Error;
};

/// Runs `work` on every rank; where it threw on any, every rank throws a SharedError with that of
/// the lowest such rank (same exit code, prefixed by the rank where not common to all). On one rank
/// the error passes. Collective; in `work` all ranks reach a collective or none.
void run_together(Communicator& world, const std::function<void()>& work);

/// group.channel(name), but sums of fp32 values are the MPI library's own (MPI_Iallreduce,
/// MPI_Ireduce to each owner), in its order: equal bits only where the library chooses the same
/// algorithm. Sums of bf16 values stay in rank order and fp32. Nothing goes through SharedSlots.
/// Counters hold what a ring sends. For channels of CPU memory. Collective.
std::unique_ptr<Communicator> make_library_sum_channel(Communicator& group, std::string_view name);

}  // namespace trireme
