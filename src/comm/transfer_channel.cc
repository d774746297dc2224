#include "comm/transfer_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/math.h"
#include "comm/rank_order_sum.h"

namespace trireme {

namespace {
constexpr int kTags = TransferChannel::kSegmentTags, kExchangeTag = kTags,
              kDescriptorTag = kTags + 1;

std::size_t segment_bytes_for(std::size_t wanted, std::size_t ranks, bool shared) {
  constexpr std::size_t kMost = std::size_t{1} << 30;  // MPI counts are 32 bits
  if (wanted != 0) return std::min(wanted, kMost);
  // About 256 KiB for each rank's shard, 512 KiB to 16 MiB in all. Shared memory has an area of the
  // whole for each rank, and more of it is no faster (measured).
  return std::min(ranks << 18, std::size_t{shared ? 1U : 16U} << 20);
}

/// Calls `part(rank, bytes)` for each MPI message of an exchange's list.
template <class Part>
void for_each_part(std::span<const Message> messages, std::size_t part_bytes, int own_rank,
                   const Part& part) {
  for (const Message& message : messages) {
    if (message.rank == own_rank) continue;
    std::size_t begin = 0;
    do {  // also for an empty message, whose other end may be longer by mistake
      const std::size_t count = std::min(part_bytes, message.bytes.size() - begin);
      part(message.rank, message.bytes.subspan(begin, count));
      begin += count;
    } while (begin < message.bytes.size());
  }
}

std::int64_t bytes_with(std::span<const Message> messages, int rank) {
  std::int64_t bytes = 0;
  for (const Message& message : messages) {
    if (message.rank == rank) bytes += static_cast<std::int64_t>(message.bytes.size());
  }
  return bytes;
}
}  // namespace

std::size_t TransferChannel::shard_bytes(const TransferOptions& options, int ranks, bool shared) {
  const auto shards = static_cast<std::size_t>(ranks);
  const std::size_t all = segment_bytes_for(options.segment_bytes, shards, shared);
  return ((all + shards - 1) / shards + 3) / 4 * 4;  // whole fp32 values
}

std::int64_t staging_bytes(Operation operation, std::int64_t bytes, int ranks) {
  if (ranks == 1) return 0;
  const auto shard = static_cast<std::int64_t>(TransferChannel::shard_bytes({}, ranks, true));
  const std::int64_t of_shard = std::min(shard, ceil_div(bytes, ranks));
  const std::int64_t others = ranks - 1;
  // Written for the others and read from them; then one's own sum, and theirs.
  const std::int64_t scatter = 2 * others, gather = 1 + others;
  const std::int64_t shards = operation == Operation::kAllReduce       ? scatter + gather
                              : operation == Operation::kReduceScatter ? scatter
                                                                       : gather;
  return static_cast<std::int64_t>(TransferChannel::kSegments) * shards * of_shard;
}

int TransferChannel::Segment::tag() const { return static_cast<int>(2 * (number % (kTags / 2))); }

TransferChannel::TransferChannel(MpiEngine& engine, MPI_Comm comm, std::string name,
                                 const TransferOptions& options, SharedSlots* shared)
    : engine_(engine),
      comm_(comm),
      name_(std::move(name)),
      options_(options),
      shared_(shared),
      segments_(kSegments) {
  {
    const std::lock_guard lock(engine_.mutex());
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
    job_ranks_ = world_ranks(comm_);
  }
  // Blocking calls of the same name and ranks keep an order of their own.
  id_.group = group_hash(name_ + "+", job_ranks_);
  const auto ranks = static_cast<std::size_t>(size_);
  shard_bytes_ = shard_bytes(options_, size_, shared_ != nullptr);
  expect(shared_ == nullptr || options_.sums == SumsBy::kRankOrder,
         "{}: sums of the library's do not go through shared memory", name_);
  expect(shared_ == nullptr || shared_->area_bytes() >= ranks * shard_bytes_,
         "areas of {} bytes for {} shards of {}", shared_ == nullptr ? 0 : shared_->area_bytes(),
         ranks, shard_bytes_);
  tree_ = reduction_tree(rank_, size_);
  sources_.resize(ranks);
  described_.resize(ranks);
  received_.resize(ranks);
  comparison_.reserve(2 * ranks);
  engine_.attach(*this);
}

TransferChannel::~TransferChannel() { engine_.detach(*this); }

TransferChannel::Transfer* TransferChannel::take(Operation operation) {
  if (broken_) std::rethrow_exception(broken_);
  if (free_.empty()) {
    free_.push_back(&transfers_.emplace_back());
    queue_.reserve(transfers_.size());
  }
  Transfer* const transfer = free_.back();
  free_.pop_back();
  // One by one: the lists keep their memory.
  transfer->operation = operation;
  transfer->data = nullptr;
  transfer->dtype = DType::kF32;
  transfer->unit = transfer->count = transfer->posted = transfer->finished = 0;
  transfer->sends.clear();
  transfer->receives.clear();
  transfer->requests.clear();
  transfer->bytes = transfer->sequence = 0;
  transfer->agreed = transfer->under_way = transfer->done = false;
  transfer->error = nullptr;
  return transfer;
}

void TransferChannel::put(Transfer* transfer) {
  const bool collective = transfer->operation != Operation::kExchange;
  if (collective) ++id_.sequence;
  transfer->sequence = engine_.recorder().begin(name_of(transfer->operation), transfer->bytes,
                                                name_, {id_.group, collective ? id_.sequence : 0});
  queue_.push_back(transfer);
}

TransferChannel::Transfer* TransferChannel::start(Operation operation, TensorView operand) {
  Transfer* transfer;
  {
    const std::lock_guard lock(mutex_);
    transfer = take(operation);
    transfer->data = operand.data;
    transfer->dtype = operand.dtype;
    transfer->bytes = static_cast<std::int64_t>(operand.bytes());
    transfer->unit = operation == Operation::kAllGather ? 1 : size_of(operand.dtype);
    transfer->count = operand.bytes() / transfer->unit;
    if (operation != Operation::kAllReduce) transfer->count /= static_cast<std::size_t>(size_);
    if (options_.check) describe(*transfer);
    put(transfer);
  }
  engine_.add_work();
  return transfer;
}

TransferChannel::Transfer* TransferChannel::start_exchange(std::span<const Message> sends,
                                                           std::span<const Message> receives) {
  Transfer* transfer;
  {
    const std::lock_guard lock(mutex_);
    transfer = take(Operation::kExchange);
    transfer->sends.assign(sends.begin(), sends.end());
    transfer->receives.assign(receives.begin(), receives.end());
    for (const std::span<const Message> list : {sends, receives}) {
      for (const Message& message : list) {
        transfer->bytes += static_cast<std::int64_t>(message.bytes.size());
      }
    }
    put(transfer);
  }
  engine_.add_work();
  return transfer;
}

void TransferChannel::wait(Transfer* transfer) {
  if (engine_.waits_awake()) {
    engine_.advance_until([&] {
      const std::lock_guard lock(mutex_);
      return transfer->done;
    });
  }
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return transfer->done; });
  const std::exception_ptr error = std::exchange(transfer->error, nullptr);
  free_.push_back(transfer);
  if (error) std::rethrow_exception(error);
}

bool TransferChannel::busy() const {
  const std::lock_guard lock(mutex_);
  return broken_ || free_.size() != transfers_.size();
}

std::int64_t TransferChannel::bytes_sent(Operation operation, TensorView operand) const {
  // Segments are of equal shards but the last, so that all of them together have even shards too.
  return operation == Operation::kAllReduce
             ? all_reduce_bytes_sent(operand.count(), operand.dtype, size_, rank_)
             : one_way_bytes_sent(static_cast<std::int64_t>(operand.bytes()), size_);
}

bool TransferChannel::advance() noexcept {
  bool moved = false;
  try {
    for (Segment& segment : segments_) moved = move(segment) || moved;
    for (std::size_t i = exchanges_.size(); i-- > 0;)
      moved = move_exchange(*exchanges_[i]) || moved;
    // One by one: messages of two between the same ranks would have no order.
    while (!combinations_.empty() && move_combine(*combinations_.front())) moved = true;
    while (post_next()) moved = true;
  } catch (...) {
    fail(std::current_exception(), true);
    moved = true;
  }
  return moved;
}

bool TransferChannel::move(Segment& segment) {
  if (segment.state == State::kFree || !ready(segment)) return false;
  switch (segment.state) {
    case State::kFree:
      break;
    case State::kEnter:
      begin(segment);
      break;
    case State::kScatter:
      add_pieces(segment);
      if (segment.transfer->operation == Operation::kAllReduce) {
        post_gather(segment);
      } else {
        release(segment);
      }
      break;
    case State::kGather:
      if (shared_ != nullptr) copy_gathered(segment);
      release(segment);
      break;
    case State::kLibrarySum:
      release(segment);
      break;
  }
  return true;
}

bool TransferChannel::ready(Segment& segment) {
  if (shared_ == nullptr) return all_done(segment.requests, MPI_STATUSES_IGNORE);
  return shared_->all_reached(segment.slot(), segment.awaited);
}

void TransferChannel::begin(Segment& segment) {
  const Transfer& transfer = *segment.transfer;
  if (transfer.operation == Operation::kAllGather) {
    post_gather(segment);
  } else if (options_.sums == SumsBy::kLibrary && transfer.dtype == DType::kF32) {
    post_library_sum(segment);  // MPI has no bf16
  } else {
    post_scatter(segment);
  }
}

bool TransferChannel::all_done(std::vector<MPI_Request>& requests, MPI_Status* statuses) {
  int done = 0;
  const std::lock_guard lock(engine_.mutex());
  check_mpi(MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done, statuses),
            "a transfer: MPI_Testall");
  return done != 0;
}

bool TransferChannel::post_next() {
  Transfer* transfer;
  {
    const std::lock_guard lock(mutex_);
    const auto next = std::find_if(queue_.begin(), queue_.end(),
                                   [](const Transfer* each) { return !each->under_way; });
    if (next == queue_.end()) return false;
    transfer = *next;
  }
  if (!agreed(*transfer)) return false;
  if (transfer->operation == Operation::kExchange) {
    post_exchange(*transfer);
    return true;
  }
  if (transfer->operation == Operation::kCombine) {
    post_combine(*transfer);
    return true;
  }
  if (transfer->count == 0) {
    finish(*transfer);
    return true;
  }
  Segment& segment = segments_[next_ % kSegments];
  if (segment.state != State::kFree) return false;
  post_segment(segment, *transfer);
  return true;
}

bool TransferChannel::all_described(Transfer& transfer) {
  if (transfer.operation != Operation::kExchange) return transfer.comparison.done(engine_);
  if (!comparing_) {
    post_exchange_descriptors(transfer);
    comparing_ = true;
  }
  comparing_ = !all_done(comparison_, MPI_STATUSES_IGNORE);
  return !comparing_;
}

bool TransferChannel::agreed(Transfer& transfer) {
  if (!options_.check || transfer.agreed) return true;
  if (!all_described(transfer)) return false;
  try {
    if (transfer.operation == Operation::kExchange) {
      compare_descriptors(received_, described_, rank_, job_ranks_, name_);
    } else {
      transfer.comparison.check(job_ranks_, rank_, name_);
    }
  } catch (...) {
    // What is posted already is the same on all ranks, and goes on to its end.
    fail(std::current_exception(), false);
    return false;
  }
  transfer.agreed = true;
  return true;
}

void TransferChannel::describe(Transfer& transfer) {
  Descriptor mine{++collectives_, transfer.bytes, 0, transfer.operation, transfer.dtype};
  mine.set_channel(name_);
  transfer.comparison.post(engine_, job_ranks_, rank_, mine);
}

void TransferChannel::post_exchange_descriptors(const Transfer& transfer) {
  Descriptor common{0, transfer.bytes, 0, transfer.operation, transfer.dtype};
  common.set_channel(name_);
  comparison_.clear();
  const std::lock_guard lock(engine_.mutex());
  for (int rank = 0; rank < size_; ++rank) {
    Descriptor& to = described_[static_cast<std::size_t>(rank)] = common;
    Descriptor& from = received_[static_cast<std::size_t>(rank)] = {};
    to.bytes = bytes_with(transfer.sends, rank);
    to.other = bytes_with(transfer.receives, rank);
    if (rank == rank_) {
      from = to;
      continue;
    }
    const auto names = [rank](const Message& message) { return message.rank == rank; };
    if (std::none_of(transfer.sends.begin(), transfer.sends.end(), names) &&
        std::none_of(transfer.receives.begin(), transfer.receives.end(), names)) {
      continue;
    }
    receive(std::as_writable_bytes(std::span(&from, 1)), rank, kDescriptorTag, comparison_);
    send(std::as_bytes(std::span(&to, 1)), rank, kDescriptorTag, comparison_);
  }
}

std::size_t TransferChannel::segment_units(const Transfer& transfer) const {
  const std::size_t shard = shard_bytes_ / transfer.unit;
  return transfer.operation == Operation::kAllReduce ? shard * static_cast<std::size_t>(size_)
                                                     : shard;
}

std::span<std::byte> TransferChannel::shard(const Segment& segment, int rank) const {
  const Transfer& transfer = *segment.transfer;
  if (transfer.operation != Operation::kAllReduce) {
    const std::size_t begin = static_cast<std::size_t>(rank) * transfer.count + segment.begin;
    return {transfer.data + begin * transfer.unit, segment.count * transfer.unit};
  }
  const Slice part = even_slice(static_cast<std::int64_t>(segment.count), size_, rank);
  const std::size_t begin = segment.begin + static_cast<std::size_t>(part.begin);
  return {transfer.data + begin * transfer.unit,
          static_cast<std::size_t>(part.size) * transfer.unit};
}

void TransferChannel::post_segment(Segment& segment, Transfer& transfer) {
  segment.transfer = &transfer;
  segment.begin = transfer.posted;
  segment.count = std::min(segment_units(transfer), transfer.count - transfer.posted);
  transfer.posted += segment.count;
  transfer.under_way = transfer.posted == transfer.count;
  segment.number = next_++;
  if (shared_ == nullptr) return begin(segment);
  segment.state = State::kEnter;
  segment.awaited = segment.entered();
  move(segment);
}

void TransferChannel::send(std::span<const std::byte> bytes, int rank, int tag,
                           std::vector<MPI_Request>& requests) {
  check_mpi(MPI_Isend(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, rank, tag, comm_,
                      &requests.emplace_back()),
            "a transfer: MPI_Isend");
}

void TransferChannel::receive(std::span<std::byte> bytes, int rank, int tag,
                              std::vector<MPI_Request>& requests) {
  check_mpi(MPI_Irecv(bytes.data(), static_cast<int>(bytes.size()), MPI_BYTE, rank, tag, comm_,
                      &requests.emplace_back()),
            "a transfer: MPI_Irecv");
}

void TransferChannel::post_scatter(Segment& segment) {
  segment.state = State::kScatter;
  if (shared_ != nullptr) {
    std::byte* const area = shared_->area(segment.slot(), rank_);
    for (int rank = 0; rank < size_; ++rank) {
      const std::span<std::byte> theirs = shard(segment, rank);
      if (rank == rank_ || theirs.empty()) continue;
      std::memcpy(area + static_cast<std::size_t>(rank) * shard_bytes_, theirs.data(),
                  theirs.size());
    }
    segment.awaited = segment.scattered();
    return shared_->mark(segment.slot(), rank_, segment.awaited);
  }
  segment.requests.clear();
  // By the first sum: many channels have none.
  if (segment.received.empty())
    segment.received.resize(shard_bytes_ * static_cast<std::size_t>(size_ - 1));
  const std::size_t mine = shard(segment, rank_).size();
  const std::lock_guard lock(engine_.mutex());
  std::byte* target = segment.received.data();
  // Each rank starts with its neighbour, so that no rank is everybody's first.
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_, to = (rank_ + step) % size_;
    if (mine > 0) receive({target, mine}, from, segment.tag(), segment.requests);
    target += shard_bytes_;
    const std::span<std::byte> theirs = shard(segment, to);
    if (!theirs.empty()) send(theirs, to, segment.tag(), segment.requests);
  }
}

void TransferChannel::add_pieces(Segment& segment) {
  const std::span<std::byte> mine = shard(segment, rank_);
  for (int rank = 0; rank < size_; ++rank) {
    const std::byte*& source = sources_[static_cast<std::size_t>(rank)];
    const auto step = static_cast<std::size_t>((rank_ + size_ - rank) % size_);
    if (rank == rank_) {
      source = mine.data();
    } else if (shared_ != nullptr) {
      source = shared_->area(segment.slot(), rank) + static_cast<std::size_t>(rank_) * shard_bytes_;
    } else {
      source = segment.received.data() + (step - 1) * shard_bytes_;
    }
  }
  const Transfer& transfer = *segment.transfer;
  sum_in_rank_order(sources_, transfer.dtype, mine.size() / transfer.unit, mine.data());
}

void TransferChannel::post_gather(Segment& segment) {
  segment.state = State::kGather;
  const std::span<std::byte> mine = shard(segment, rank_);
  if (shared_ != nullptr) {
    if (!mine.empty()) {
      std::memcpy(
          shared_->area(segment.slot(), rank_) + static_cast<std::size_t>(rank_) * shard_bytes_,
          mine.data(), mine.size());
    }
    segment.awaited = segment.summed();
    return shared_->mark(segment.slot(), rank_, segment.awaited);
  }
  segment.requests.clear();
  const std::lock_guard lock(engine_.mutex());
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_, to = (rank_ + step) % size_;
    const std::span<std::byte> theirs = shard(segment, from);
    if (!theirs.empty()) receive(theirs, from, segment.tag() + 1, segment.requests);
    if (!mine.empty()) send(mine, to, segment.tag() + 1, segment.requests);
  }
}

void TransferChannel::post_library_sum(Segment& segment) {
  segment.state = State::kLibrarySum;
  segment.requests.clear();
  const Transfer& transfer = *segment.transfer;
  const std::lock_guard lock(engine_.mutex());
  if (transfer.operation == Operation::kAllReduce) {
    check_mpi(MPI_Iallreduce(MPI_IN_PLACE, transfer.data + segment.begin * transfer.unit,
                             static_cast<int>(segment.count), MPI_FLOAT, MPI_SUM, comm_,
                             &segment.requests.emplace_back()),
              "a transfer: MPI_Iallreduce");
    return;
  }
  for (int owner = 0; owner < size_; ++owner) {
    std::byte* const values = shard(segment, owner).data();
    const bool mine = owner == rank_;
    check_mpi(MPI_Ireduce(mine ? MPI_IN_PLACE : values, mine ? values : nullptr,
                          static_cast<int>(segment.count), MPI_FLOAT, MPI_SUM, owner, comm_,
                          &segment.requests.emplace_back()),
              "a transfer: MPI_Ireduce");
  }
}

void TransferChannel::copy_gathered(const Segment& segment) {
  for (int rank = 0; rank < size_; ++rank) {
    const std::span<std::byte> theirs = shard(segment, rank);
    if (rank == rank_ || theirs.empty()) continue;
    std::memcpy(theirs.data(),
                shared_->area(segment.slot(), rank) + static_cast<std::size_t>(rank) * shard_bytes_,
                theirs.size());
  }
}

void TransferChannel::post_exchange(Transfer& transfer) {
  transfer.under_way = true;
  exchanges_.push_back(&transfer);
  {
    // MPI keeps the order of messages with one tag between two ranks.
    const std::lock_guard lock(engine_.mutex());
    for_each_part(transfer.receives, options_.message_bytes, rank_,
                  [&](int rank, std::span<std::byte> bytes) {
                    receive(bytes, rank, kExchangeTag, transfer.requests);
                  });
    for_each_part(transfer.sends, options_.message_bytes, rank_,
                  [&](int rank, std::span<std::byte> bytes) {
                    send(bytes, rank, kExchangeTag, transfer.requests);
                  });
  }
  copy_own_messages(rank_, transfer.sends, transfer.receives);
}

bool TransferChannel::move_exchange(Transfer& transfer) {
  statuses_.resize(std::max(statuses_.size(), transfer.requests.size()));
  if (!all_done(transfer.requests, statuses_.data())) return false;
  std::size_t next = 0;
  for_each_part(transfer.receives, options_.message_bytes, rank_,
                [&](int rank, std::span<std::byte> bytes) {
                  int count = 0;
                  MPI_Get_count(&statuses_[next++], MPI_BYTE, &count);
                  expect(static_cast<std::size_t>(count) == bytes.size(),
                         "exchange on {}: {} bytes from rank {} where {} were expected", name_,
                         count, rank, bytes.size());
                });
  std::erase(exchanges_, &transfer);
  finish(transfer);
  return true;
}

void TransferChannel::release(Segment& segment) {
  if (shared_ != nullptr) shared_->mark(segment.slot(), rank_, segment.left());
  segment.state = State::kFree;
  Transfer& transfer = *segment.transfer;
  transfer.finished += segment.count;
  if (transfer.finished == transfer.count) finish(transfer);
}

void TransferChannel::finish(Transfer& transfer) {
  engine_.recorder().end(transfer.sequence);
  engine_.remove_work();
  const std::lock_guard lock(mutex_);
  std::erase(queue_, &transfer);
  transfer.done = true;
  finished_.notify_all();
}

void TransferChannel::fail(const std::exception_ptr& error, bool all) noexcept {
  const std::lock_guard lock(mutex_);
  broken_ = error;
  if (all) {
    for (Segment& segment : segments_) segment.state = State::kFree;
    exchanges_.clear();
    combinations_.clear();
  }
  std::erase_if(queue_, [&](Transfer* transfer) {
    if (!all && transfer->posted > 0) return false;
    if (!all && transfer->under_way) return false;
    transfer->error = error;
    transfer->done = true;
    engine_.remove_work();
    return true;
  });
  finished_.notify_all();
}

}  // namespace trireme
