#include "comm/reduce_channel.h"

#include <algorithm>
#include <utility>

#include "base/math.h"
#include "comm/rank_order_sum.h"

namespace trireme {

ReduceChannel::ReduceChannel(MpiEngine& engine, MPI_Comm comm, std::string name,
                             std::size_t segment_bytes)
    : engine_(engine), comm_(comm), name_(std::move(name)), segments_(kSegments) {
  {
    const std::lock_guard lock(engine_.mutex());
    check_mpi(MPI_Comm_rank(comm_, &rank_), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size_), "MPI_Comm_size");
  }
  const auto ranks = static_cast<std::size_t>(size_);
  segment_count_ = std::max<std::size_t>(1, segment_bytes / sizeof(float));
  piece_count_ = (segment_count_ + ranks - 1) / ranks;
  for (Segment& segment : segments_) {
    segment.requests.reserve(2 * ranks);
    segment.received.resize(piece_count_ * (ranks - 1));
  }
  sources_.resize(ranks);
  engine_.attach(*this);
}

ReduceChannel::~ReduceChannel() { engine_.detach(*this); }

ReduceChannel::Transfer* ReduceChannel::start(std::span<float> values) {
  Transfer* transfer;
  {
    const std::lock_guard lock(mutex_);
    if (broken_) std::rethrow_exception(broken_);
    if (free_.empty()) {
      free_.push_back(&transfers_.emplace_back());
      queue_.reserve(transfers_.size());
    }
    transfer = free_.back();
    free_.pop_back();
    *transfer = {};
    transfer->values = values;
    transfer->sequence = engine_.recorder().begin(
        "all_reduce", static_cast<std::int64_t>(values.size_bytes()), name_);
    queue_.push_back(transfer);
  }
  engine_.add_work();
  return transfer;
}

void ReduceChannel::wait(Transfer* transfer) {
  std::unique_lock lock(mutex_);
  finished_.wait(lock, [&] { return transfer->done; });
  const std::exception_ptr error = std::exchange(transfer->error, nullptr);
  free_.push_back(transfer);
  if (error) std::rethrow_exception(error);
}

bool ReduceChannel::busy() const {
  const std::lock_guard lock(mutex_);
  return free_.size() != transfers_.size();
}

bool ReduceChannel::advance() noexcept {
  bool moved = false;
  try {
    for (Segment& segment : segments_) moved = move(segment) || moved;
    while (post_next()) moved = true;
  } catch (...) {
    fail(std::current_exception());
    moved = true;
  }
  return moved;
}

bool ReduceChannel::move(Segment& segment) {
  if (segment.state == State::kFree || !all_done(segment)) return false;
  if (segment.state == State::kScatter) {
    add_pieces(segment);
    post_gather(segment);
  } else {
    finish(segment);
  }
  return true;
}

bool ReduceChannel::all_done(Segment& segment) {
  int done = 0;
  const std::lock_guard lock(engine_.mutex());
  check_mpi(MPI_Testall(static_cast<int>(segment.requests.size()), segment.requests.data(), &done,
                        MPI_STATUSES_IGNORE),
            "all_reduce: MPI_Testall");
  return done != 0;
}

bool ReduceChannel::post_next() {
  const auto segment = std::find_if(segments_.begin(), segments_.end(),
                                    [](const Segment& each) { return each.state == State::kFree; });
  if (segment == segments_.end()) return false;
  {
    const std::lock_guard lock(mutex_);
    const auto next = std::find_if(queue_.begin(), queue_.end(), [](const Transfer* each) {
      return each->posted < each->values.size() || each->values.empty();
    });
    if (next == queue_.end()) return false;
    Transfer& transfer = **next;
    const std::size_t count = std::min(segment_count_, transfer.values.size() - transfer.posted);
    segment->transfer = &transfer;
    segment->values = transfer.values.subspan(transfer.posted, count);
    transfer.posted += count;
  }
  if (segment->values.empty()) {
    finish(*segment);
  } else {
    post_scatter(*segment);
  }
  return true;
}

std::span<float> ReduceChannel::piece(const Segment& segment, int rank) const {
  const Piece part = even_piece(static_cast<std::int64_t>(segment.values.size()), size_, rank);
  return segment.values.subspan(static_cast<std::size_t>(part.begin),
                                static_cast<std::size_t>(part.size));
}

void ReduceChannel::post_scatter(Segment& segment) {
  // Pairs of segment and direction under way at once never share a tag; 2 * 4096 is below every
  // MPI's limit.
  segment.tag = 2 * (next_tag_++ % 4096);
  segment.requests.clear();
  segment.state = State::kScatter;
  const auto mine = static_cast<int>(piece(segment, rank_).size());
  const std::lock_guard lock(engine_.mutex());
  float* target = segment.received.data();
  // Each rank starts with its neighbour, so that no rank is everybody's first.
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    if (mine > 0) {
      check_mpi(MPI_Irecv(target, mine, MPI_FLOAT, from, segment.tag, comm_,
                          &segment.requests.emplace_back()),
                "all_reduce: MPI_Irecv");
    }
    target += piece_count_;
    const int to = (rank_ + step) % size_;
    const std::span<float> theirs = piece(segment, to);
    if (!theirs.empty()) {
      check_mpi(MPI_Isend(theirs.data(), static_cast<int>(theirs.size()), MPI_FLOAT, to,
                          segment.tag, comm_, &segment.requests.emplace_back()),
                "all_reduce: MPI_Isend");
    }
  }
}

void ReduceChannel::add_pieces(Segment& segment) {
  const std::span<float> mine = piece(segment, rank_);
  for (int rank = 0; rank < size_; ++rank) {
    const auto step = static_cast<std::size_t>((rank_ + size_ - rank) % size_);
    sources_[static_cast<std::size_t>(rank)] =
        rank == rank_ ? mine.data() : segment.received.data() + (step - 1) * piece_count_;
  }
  sum_in_rank_order(sources_, mine.size(), mine.data());
}

void ReduceChannel::post_gather(Segment& segment) {
  segment.requests.clear();
  segment.state = State::kGather;
  const std::span<float> mine = piece(segment, rank_);
  const std::lock_guard lock(engine_.mutex());
  for (int step = 1; step < size_; ++step) {
    const int from = (rank_ + size_ - step) % size_;
    const std::span<float> theirs = piece(segment, from);
    if (!theirs.empty()) {
      check_mpi(MPI_Irecv(theirs.data(), static_cast<int>(theirs.size()), MPI_FLOAT, from,
                          segment.tag + 1, comm_, &segment.requests.emplace_back()),
                "all_reduce: MPI_Irecv");
    }
    if (!mine.empty()) {
      check_mpi(
          MPI_Isend(mine.data(), static_cast<int>(mine.size()), MPI_FLOAT, (rank_ + step) % size_,
                    segment.tag + 1, comm_, &segment.requests.emplace_back()),
          "all_reduce: MPI_Isend");
    }
  }
}

void ReduceChannel::finish(Segment& segment) {
  segment.state = State::kFree;
  Transfer& transfer = *segment.transfer;
  transfer.finished += segment.values.size();
  if (transfer.finished < transfer.values.size()) return;
  engine_.recorder().end(transfer.sequence);
  engine_.remove_work();
  const std::lock_guard lock(mutex_);
  std::erase(queue_, &transfer);
  transfer.done = true;
  finished_.notify_all();
}

void ReduceChannel::fail(const std::exception_ptr& error) noexcept {
  for (Segment& segment : segments_) segment.state = State::kFree;
  const std::lock_guard lock(mutex_);
  broken_ = error;
  for (Transfer* transfer : queue_) {
    transfer->error = error;
    transfer->done = true;
    engine_.remove_work();
  }
  queue_.clear();
  finished_.notify_all();
}

}  // namespace trireme
