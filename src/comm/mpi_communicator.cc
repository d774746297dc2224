#include "comm/mpi_communicator.h"

#include <algorithm>
#include <exception>
#include <limits>
#include <utility>

#include "base/math.h"
#include "base/trace.h"
#include "comm/call_comparison.h"
#include "comm/communicator.h"

namespace trireme {

namespace {
constexpr std::size_t kBroadcastBytes = std::size_t{64}
                                        << 20;  // of one MPI call: its counts are 32 bits

MpiComm duplicate(MPI_Comm group) {
  MPI_Comm copy = MPI_COMM_NULL;
  check_mpi(MPI_Comm_dup(group, &copy), "MPI_Comm_dup");
  MpiComm owned(copy);
  check_mpi(MPI_Comm_set_errhandler(copy, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  return owned;
}
}  // namespace

/// Counts what it moves and the time until its end.
class MpiCommunicator::Blocking {
 public:
  Blocking(MpiCommunicator& owner, const char* operation, std::size_t bytes)
      : owner_(owner),
        begin_ns_(steady_now_ns()),
        sequence_(owner.engine_->recorder().begin(operation, static_cast<std::int64_t>(bytes),
                                                  owner.name_, owner.next_id())) {
    ++owner.counters_.transfers;
  }
  ~Blocking() {
    owner_.engine_->recorder().end(sequence_);
    owner_.counters_.exposed_ns += steady_now_ns() - begin_ns_;
  }
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

  void sent(std::size_t bytes) { owner_.counters_.bytes_sent += static_cast<std::int64_t>(bytes); }

  /// Messages of any length that MPI counts.
  void exchange(int to, std::span<const std::byte> out, int from, std::span<std::byte> in) {
    constexpr int kTag = 0;
    MPI_Request sent = MPI_REQUEST_NULL, received = MPI_REQUEST_NULL;
    {
      const std::lock_guard lock(owner_.engine_->mutex());
      const MPI_Comm comm = owner_.blocking_.get();
      check_mpi(MPI_Irecv(in.data(), narrow<int>(in.size()), MPI_BYTE, from, kTag, comm, &received),
                "MPI_Irecv");
      check_mpi(MPI_Isend(out.data(), narrow<int>(out.size()), MPI_BYTE, to, kTag, comm, &sent),
                "MPI_Isend");
    }
    owner_.engine_->complete(received, "MPI_Irecv");
    owner_.engine_->complete(sent, "MPI_Isend");
  }

  /// `start(&request)` makes one non-blocking MPI call.
  template <class Start>
  void run(const char* operation, const Start& start) {
    MPI_Request request = MPI_REQUEST_NULL;
    {
      const std::lock_guard lock(owner_.engine_->mutex());
      check_mpi(start(&request), operation);
    }
    owner_.engine_->complete(request, operation);
  }

 private:
  MpiCommunicator& owner_;
  std::int64_t begin_ns_, sequence_;
};

MpiCommunicator::MpiCommunicator(std::shared_ptr<MpiEngine> engine, MPI_Comm group,
                                 std::string name, const TransferOptions& options)
    : engine_(std::move(engine)), name_(std::move(name)), options_(options) {
  {
    const std::lock_guard lock(engine_->mutex());
    check_mpi(MPI_Comm_rank(group, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(group, &size_), "MPI_Comm_size");
    blocking_ = duplicate(group);
    started_ = duplicate(group);
    job_ranks_ = world_ranks(group);
    id_.group = group_hash(name_, job_ranks_);
  }
  rounds_ = gather_rounds(rank_, size_);
  try {
    share_memory();
  } catch (...) {
    // As in the destructor: the ranks may not all be here.
    static_cast<void>(blocking_.release());
    static_cast<void>(started_.release());
    throw;
  }
}

void MpiCommunicator::share_memory() {
  if (size_ == 1 || !options_.shared) return;
  const std::size_t area =
      TransferChannel::shard_bytes(options_, size_, true) * static_cast<std::size_t>(size_);
  shared_ = SharedSlots::open(*this, TransferChannel::kSegments, area);
  counters_ = {};  // of transfers that somebody asked for
}

MpiCommunicator::~MpiCommunicator() {
  const bool busy = channel_ && channel_->busy();
  channel_.reset();
  const std::lock_guard lock(engine_->mutex());
  // Freeing is collective, and others may never come here when an error unwinds: then both leak.
  if (!busy && std::uncaught_exceptions() == 0) return;
  static_cast<void>(blocking_.release());
  static_cast<void>(started_.release());
}

void MpiCommunicator::check_collectives(bool on) {
  if (options_.check == on) return;
  expect(!channel_ || !channel_->busy(), "{}: transfers are under way", name_);
  options_.check = on;
  if (channel_) channel_->check(on);
}

void MpiCommunicator::compare_calls(Operation operation, DType dtype, std::int64_t bytes) {
  compare_calls(operation, dtype, bytes, 0);
}

void MpiCommunicator::compare_calls(Operation operation, DType dtype, std::int64_t bytes,
                                    int root) {
  if (!options_.check || size_ == 1) return;
  Descriptor mine{++compared_, bytes, root, operation, dtype};
  mine.set_channel(name_);
  CallComparison comparison;
  comparison.post(*engine_, job_ranks_, rank_, mine);
  comparison.wait(*engine_);
  comparison.check(job_ranks_, rank_, name_);
}

void MpiCommunicator::barrier() {
  compare_calls(Operation::kBarrier, DType::kF32, 0);
  Blocking call(*this, "barrier", 0);
  call.run("MPI_Ibarrier",
           [&](MPI_Request* request) { return MPI_Ibarrier(blocking_.get(), request); });
}

void MpiCommunicator::broadcast(std::span<std::byte> bytes, int root) {
  expect(root >= 0 && root < size_, "broadcast from rank {} of {}", root, size_);
  compare_calls(Operation::kBroadcast, DType::kF32, std::ssize(bytes), root);
  Blocking call(*this, "broadcast", bytes.size());
  if (rank_ == root) call.sent(bytes.size() * static_cast<std::size_t>(size_ - 1));
  for (std::size_t begin = 0; begin < bytes.size(); begin += kBroadcastBytes) {
    const std::span<std::byte> part =
        bytes.subspan(begin, std::min(kBroadcastBytes, bytes.size() - begin));
    call.run("MPI_Ibcast", [&](MPI_Request* request) {
      return MPI_Ibcast(part.data(), narrow<int>(part.size()), MPI_BYTE, root, blocking_.get(),
                        request);
    });
  }
}

void MpiCommunicator::all_gather(std::span<const std::byte> mine, std::span<std::byte> all) {
  expect(all.size() == mine.size() * static_cast<std::size_t>(size_),
         "all_gather of {} bytes from each of {} ranks into {}", mine.size(), size_, all.size());
  compare_calls(Operation::kAllGather, DType::kF32, std::ssize(mine));
  Blocking call(*this, "all_gather", mine.size());
  call.sent(mine.size() * static_cast<std::size_t>(size_ - 1));
  pieces_.resize(std::max(pieces_.size(), all.size()));
  begins_.clear();
  for (int i = 0; i <= size_; ++i) begins_.push_back(i * std::ssize(mine));
  const std::span<std::byte> pieces = std::span(pieces_).first(all.size());
  std::copy(mine.begin(), mine.end(), pieces.begin());
  gather_pieces(call, pieces, begins_);
  // Piece i is that of rank (rank_ + i) % size_.
  const std::size_t own_begin = mine.size() * static_cast<std::size_t>(rank_);
  std::rotate_copy(pieces.begin(), pieces.end() - static_cast<std::ptrdiff_t>(own_begin),
                   pieces.end(), all.begin());
}

void MpiCommunicator::gather_pieces(Blocking& call, std::span<std::byte> pieces,
                                    std::span<const std::int64_t> begins) {
  const auto part = [&](int first, int count) {
    const auto begin = static_cast<std::size_t>(begins[static_cast<std::size_t>(first)]);
    const auto end = static_cast<std::size_t>(begins[static_cast<std::size_t>(first + count)]);
    return pieces.subspan(begin, end - begin);
  };
  int held = 1;
  for (const GatherRound& round : rounds_) {
    call.exchange(round.to, part(0, round.pieces), round.from, part(held, round.pieces));
    held += round.pieces;
  }
}

std::vector<std::string> MpiCommunicator::all_gather_text(std::string_view mine) {
  compare_calls(Operation::kAllGatherText, DType::kF32, 0);
  const std::int64_t bytes = std::ssize(mine);
  const auto ranks = static_cast<std::size_t>(size_);
  std::vector<std::int64_t> sizes(ranks), begins{0};
  all_gather(std::as_bytes(std::span(&bytes, 1)), std::as_writable_bytes(std::span(sizes)));
  const auto rank_of = [&](std::size_t piece) {
    return (static_cast<std::size_t>(rank_) + piece) % ranks;
  };
  for (std::size_t i = 0; i < ranks; ++i) begins.push_back(begins.back() + sizes[rank_of(i)]);
  std::string joined(static_cast<std::size_t>(begins.back()), '\0');
  joined.replace(0, mine.size(), mine);
  {
    Blocking call(*this, "all_gather_text", mine.size());
    call.sent(mine.size() * (ranks - 1));
    gather_pieces(call, std::as_writable_bytes(std::span(joined)), begins);
  }
  std::vector<std::string> texts(ranks);
  for (std::size_t i = 0; i < ranks; ++i) {
    const std::size_t rank = rank_of(i);
    texts[rank] =
        joined.substr(static_cast<std::size_t>(begins[i]), static_cast<std::size_t>(sizes[rank]));
  }
  return texts;
}

TransferChannel& MpiCommunicator::transfers() {
  if (!channel_) {
    channel_ =
        std::make_unique<TransferChannel>(*engine_, started_.get(), name_, options_, shared_.get());
  }
  return *channel_;
}

Pending MpiCommunicator::pending(TransferChannel::Transfer* transfer) {
  const auto wait = [this, transfer] {
    const std::int64_t begin_ns = steady_now_ns();
    channel_->wait(transfer);
    counters_.exposed_ns += steady_now_ns() - begin_ns;
  };
  static_assert(sizeof wait <= 2 * sizeof(void*), "what std::function holds without allocating");
  return Pending(wait);
}

Pending MpiCommunicator::start(Operation operation, TensorView operand) {
  ++counters_.transfers;
  if (size_ == 1) return {};
  TransferChannel& channel = transfers();
  counters_.bytes_sent += channel.bytes_sent(operation, operand);
  return pending(channel.start(operation, operand));
}

Pending MpiCommunicator::start_all_reduce(TensorView values) {
  expect_summable("all_reduce", values);
  return start(Operation::kAllReduce, values);
}

Pending MpiCommunicator::start_reduce_scatter(TensorView shards) {
  expect_summable("reduce_scatter", shards);
  expect_shards("reduce_scatter", shards);
  return start(Operation::kReduceScatter, shards);
}

Pending MpiCommunicator::start_all_gather(TensorView shards) {
  expect_shards("all_gather", shards);
  return start(Operation::kAllGather, shards);
}

Pending MpiCommunicator::start_exchange(std::span<const Message> sends,
                                        std::span<const Message> receives) {
  expect_messages(sends, receives);
  ++counters_.transfers;
  for (const Message& message : sends) {
    if (message.rank != rank_) {
      counters_.bytes_sent += static_cast<std::int64_t>(message.bytes.size());
    }
  }
  return pending(transfers().start_exchange(sends, receives));
}

Pending MpiCommunicator::start_combine(std::span<std::byte> value, Combine combine) {
  ++counters_.transfers;
  if (size_ == 1) return {};
  TransferChannel& channel = transfers();
  counters_.bytes_sent += channel.combine_bytes_sent(value.size());
  return pending(channel.start_combine(value, combine));
}

std::unique_ptr<Communicator> MpiCommunicator::split(int color) {
  expect(color >= 0, "a group of color {}", color);
  // The calls below block under the lock; after the barrier they wait for nothing but each other.
  barrier();
  MpiComm group;
  {
    const std::lock_guard lock(engine_->mutex());
    MPI_Comm raw = MPI_COMM_NULL;
    check_mpi(MPI_Comm_split(blocking_.get(), color, rank_, &raw), "MPI_Comm_split");
    group = MpiComm(raw);
  }
  auto made = std::make_unique<MpiCommunicator>(engine_, group.get(),
                                                fmt::format("{}/{}", name_, color), options_);
  const std::lock_guard lock(engine_->mutex());
  group.reset();
  return made;
}

std::unique_ptr<Communicator> MpiCommunicator::channel(std::string_view name) {
  return channel_with_options(name, options_);
}

std::unique_ptr<Communicator> make_library_sum_channel(Communicator& group, std::string_view name) {
  auto* const mpi = dynamic_cast<MpiCommunicator*>(&group);
  if (mpi == nullptr) return group.channel(name);  // one rank
  TransferOptions options = mpi->options();
  options.shared = false;
  options.sums = SumsBy::kLibrary;
  return mpi->channel_with_options(name, options);
}

std::unique_ptr<Communicator> MpiCommunicator::channel_with_options(
    std::string_view name, const TransferOptions& options) {
  barrier();
  return std::make_unique<MpiCommunicator>(engine_, blocking_.get(), std::string(name), options);
}

}  // namespace trireme
