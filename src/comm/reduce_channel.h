#pragma once
// All-reduce in rank order for one channel. A buffer is cut into segments; of each, rank r owns an
// even piece r: every rank sends it the piece (scatter), it adds them in rank order, and sends the
// sum back (gather). Several segments are under way at once, also of neighbouring transfers, so
// that sums overlap with sending.

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <exception>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "comm/mpi_engine.h"

namespace trireme {

class ReduceChannel final : public Progress {
 public:
  struct Transfer {
    std::span<float> values;
    std::size_t posted = 0, finished = 0;  ///< elements whose segments are under way or done; done
    std::int64_t sequence = 0;             ///< of the flight recorder
    bool done = false;
    std::exception_ptr error;
  };

  /// `comm` carries nothing else and outlives this. Scratch is allocated here, once.
  ReduceChannel(MpiEngine& engine, MPI_Comm comm, std::string name, std::size_t segment_bytes);
  ~ReduceChannel() override;
  ReduceChannel(const ReduceChannel&) = delete;
  ReduceChannel& operator=(const ReduceChannel&) = delete;

  Transfer* start(std::span<float> values);
  /// Blocks; throws what the transfer met. The transfer is then free for reuse.
  void wait(Transfer* transfer);
  [[nodiscard]] bool busy() const;

  bool advance() noexcept override;

 private:
  enum class State : std::uint8_t { kFree, kScatter, kGather };
  struct Segment {
    State state = State::kFree;
    Transfer* transfer = nullptr;
    std::span<float> values;
    int tag = 0;
    std::vector<MPI_Request> requests;
    std::vector<float> received;  ///< the other ranks' versions of this rank's piece
  };
  static constexpr int kSegments = 3;

  bool move(Segment& segment);
  bool post_next();
  void post_scatter(Segment& segment);
  void add_pieces(Segment& segment);
  void post_gather(Segment& segment);
  void finish(Segment& segment);
  void fail(const std::exception_ptr& error) noexcept;
  [[nodiscard]] std::span<float> piece(const Segment& segment, int rank) const;
  bool all_done(Segment& segment);

  MpiEngine& engine_;
  const MPI_Comm comm_;
  const std::string name_;
  int rank_ = 0, size_ = 1;
  std::size_t segment_count_, piece_count_;  // elements
  int next_tag_ = 0;
  std::vector<Segment> segments_;
  std::vector<const float*> sources_;

  mutable std::mutex mutex_;  // guards what follows, and `done` and `error` of transfers
  std::condition_variable finished_;
  std::deque<Transfer> transfers_;  // addresses are stable; grows to the most ever in flight
  std::vector<Transfer*> free_, queue_;
  std::exception_ptr broken_;
};

}  // namespace trireme
