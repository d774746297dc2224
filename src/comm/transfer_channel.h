#pragma once
// The started transfers of one channel over MPI, as one state machine. An operand is split into
// segments, each of one shard for every rank:
//   all-reduce      scatter, sum, gather   a segment is a run of values, its shards are even
//   reduce-scatter  scatter, sum           a segment has a slice of every shard of the operand
//   all-gather      gather                 likewise
// Scatter: every rank sends each owner its version of the shard. Sum: the owner adds them in rank
// order. Gather: it sends the shard to all. Several segments are under way at once, also of
// neighbouring transfers, so that sums overlap with sending. With sums in the library's order those
// of fp32 values are its own, segment by segment, in place of scatter, sum and gather. Where all
// ranks share a host, "sends" means that it is copied into memory which the others read. The
// messages of an exchange are posted whole, always to MPI, any number at once. So are those of a
// combination: up a binomial tree to rank 0, and what all say down again.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/call_comparison.h"
#include "comm/communicator.h"
#include "comm/mpi_engine.h"
#include "comm/rounds.h"
#include "comm/shared_slots.h"

namespace trireme {

/// Who adds the fp32 values of a sum: this channel, in rank order, or the MPI library in an order
/// of its own, the same in every run that it does so in.
enum class SumsBy : std::uint8_t { kRankOrder, kLibrary };

struct TransferOptions {
  std::size_t segment_bytes = 0;                     ///< of all shards; 0: by the number of ranks
  std::size_t message_bytes = std::size_t{1} << 30;  ///< longer messages of an exchange are split
  bool check = false;                                ///< compare_descriptors before each transfer
  bool shared = true;                                ///< through SharedSlots where they open
  SumsBy sums = SumsBy::kRankOrder;                  ///< kLibrary: not with SharedSlots
};

class TransferChannel final : public TransferQueue {
 public:
  struct Transfer {
    Operation operation = Operation::kNone;
    std::byte* data = nullptr;
    DType dtype = DType::kF32;
    std::size_t unit = 0;   ///< bytes of what is never split
    std::size_t count = 0;  ///< units of the operand (all-reduce) or of each of its shards
    std::size_t posted = 0, finished = 0;  ///< units whose segments are under way or done; done
    std::vector<Message> sends, receives;  ///< of an exchange
    std::vector<MPI_Request> requests;     ///< of an exchange: receives, then sends
    Communicator::Combine combine = nullptr;
    std::vector<std::byte> received;  ///< of a combination: what the children say
    int stage = 0;                    ///< of a combination: messages that are over
    std::int64_t bytes = 0;           ///< as recorded
    std::int64_t sequence = 0;        ///< of the flight recorder
    CallComparison comparison;        ///< of a collective, where calls are compared
    bool agreed = false;              ///< the ranks have compared descriptors
    bool under_way = false;           ///< all of it is posted
    bool done = false;
    std::exception_ptr error;
  };

  /// Segments under way.
  static constexpr std::size_t kSegments = 3;
  /// Of which two under way at once never share one; others' tags are behind, and all below every
  /// MPI's limit (32767).
  static constexpr int kSegmentTags = 8192;
  /// Bytes of a segment's largest shard; `shared`: where it goes through memory of the host.
  static std::size_t shard_bytes(const TransferOptions& options, int ranks, bool shared);

  /// `comm` carries nothing else and outlives this, as does `shared`, which may be null: kSegments
  /// slots of areas for a shard of each rank.
  TransferChannel(MpiEngine& engine, MPI_Comm comm, std::string name,
                  const TransferOptions& options, SharedSlots* shared);
  ~TransferChannel() override;
  TransferChannel(const TransferChannel&) = delete;
  TransferChannel& operator=(const TransferChannel&) = delete;

  /// kAllReduce, kReduceScatter or kAllGather.
  Transfer* start(Operation operation, TensorView operand);
  Transfer* start_exchange(std::span<const Message> sends, std::span<const Message> receives);
  Transfer* start_combine(std::span<std::byte> value, Communicator::Combine combine);
  [[nodiscard]] std::int64_t combine_bytes_sent(std::size_t bytes) const;
  /// Blocks; throws what the transfer met. The transfer is then free for reuse.
  void wait(Transfer* transfer);
  /// Something is under way, or an error left it so.
  [[nodiscard]] bool busy() const;
  /// Switches TransferOptions::check; no transfer is under way.
  void check(bool on) { options_.check = on; }
  /// Bytes that this rank sends for such a transfer.
  [[nodiscard]] std::int64_t bytes_sent(Operation operation, TensorView operand) const;

  bool advance() noexcept override;

 private:
  enum class State : std::uint8_t { kFree, kEnter, kScatter, kGather, kLibrarySum };
  struct Segment {
    State state = State::kFree;
    Transfer* transfer = nullptr;
    std::size_t begin = 0, count = 0;  ///< units
    std::uint64_t awaited = 0;  ///< in shared memory: the mark of all ranks that lets it go on
    std::uint64_t number = 0;   ///< 0, 1, ... over all segments of the channel
    std::vector<MPI_Request> requests;  ///< without shared memory
    std::vector<std::byte> received;  ///< likewise: the other ranks' versions of this rank's shard

    [[nodiscard]] std::size_t slot() const { return number % kSegments; }
    [[nodiscard]] int tag() const;
    /// The marks of this use of a slot: all have left the one before, this rank's version is there,
    /// its sum is there, it reads no more. Each is above all of the use before.
    [[nodiscard]] std::uint64_t entered() const { return number / kSegments * 3; }
    [[nodiscard]] std::uint64_t scattered() const { return entered() + 1; }
    [[nodiscard]] std::uint64_t summed() const { return entered() + 2; }
    [[nodiscard]] std::uint64_t left() const { return entered() + 3; }
  };

  Transfer* take(Operation operation);  // with mutex_ held
  void put(Transfer* transfer);         // with mutex_ held
  bool move(Segment& segment);
  bool ready(Segment& segment);
  void begin(Segment& segment);
  bool post_next();
  bool agreed(Transfer& transfer);
  void describe(Transfer& transfer);
  [[nodiscard]] bool all_described(Transfer& transfer);
  void post_exchange_descriptors(const Transfer& transfer);
  void post_segment(Segment& segment, Transfer& transfer);
  void post_scatter(Segment& segment);
  void add_pieces(Segment& segment);
  void post_gather(Segment& segment);
  void post_library_sum(Segment& segment);
  void copy_gathered(const Segment& segment);
  void post_exchange(Transfer& transfer);
  bool move_exchange(Transfer& transfer);
  void post_combine(Transfer& transfer);
  bool move_combine(Transfer& transfer);
  void release(Segment& segment);
  void finish(Transfer& transfer);
  void fail(const std::exception_ptr& error, bool all) noexcept;
  [[nodiscard]] std::size_t segment_units(const Transfer& transfer) const;
  [[nodiscard]] std::span<std::byte> shard(const Segment& segment, int rank) const;
  void send(std::span<const std::byte> bytes, int rank, int tag,
            std::vector<MPI_Request>& requests);
  void receive(std::span<std::byte> bytes, int rank, int tag, std::vector<MPI_Request>& requests);
  bool all_done(std::vector<MPI_Request>& requests, MPI_Status* statuses);

  MpiEngine& engine_;
  const MPI_Comm comm_;
  const std::string name_;
  TransferOptions options_;
  SharedSlots* const shared_;
  int rank_ = 0, size_ = 1;
  ReductionTree tree_;
  std::size_t shard_bytes_ = 0;    ///< of a segment's largest shard
  std::uint64_t next_ = 0;         ///< segment
  std::vector<Segment> segments_;  ///< number % kSegments
  std::vector<const std::byte*> sources_;
  std::vector<Transfer*> exchanges_, combinations_;  ///< under way
  std::vector<MPI_Status> statuses_;

  std::vector<int> job_ranks_;
  CollectiveId id_;               ///< of the newest collective put in the queue
  std::int64_t collectives_ = 0;  ///< compared
  // The comparison of the oldest exchange that is not posted: with the ranks that it names alone.
  bool comparing_ = false;
  std::vector<Descriptor> described_, received_;  ///< by rank: to it, from it
  std::vector<MPI_Request> comparison_;

  mutable std::mutex mutex_;  // guards what follows, and `done` and `error` of transfers
  std::condition_variable finished_;
  std::deque<Transfer> transfers_;  // addresses are stable; grows to the most ever in flight
  std::vector<Transfer*> free_, queue_;
  std::exception_ptr broken_;
};

}  // namespace trireme
