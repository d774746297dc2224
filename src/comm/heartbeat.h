#pragma once
// Where every rank of this host stands, in memory that they share: the watchdog of one rank reads
// the others' entries, also when a rank is stopped or its main thread hangs.

#include <array>
#include <atomic>
#include <cstdint>
#include <vector>

#include "base/trace.h"
#include "comm/launch.h"

namespace trireme {

/// A collective that a rank has begun.
struct BeatTransfer {
  CollectiveId id;
  std::int64_t bytes = 0;
  std::int32_t running = 0;  ///< 1: entered and not left
  std::int32_t unused = 0;
  std::array<char, 24> operation{};
  std::array<char, 24> channel{};
};

/// The entry of one rank. Times are CLOCK_MONOTONIC, the same for all processes of a host.
struct Beat {
  std::int32_t pid = 0;  ///< 0: nothing published yet
  std::int32_t rank = 0;
  std::int64_t step = 0;               ///< the step under way, 1, 2, ...; 0 before the first
  std::int64_t progress_ns = 0;        ///< when step, phase or collective last changed
  std::int64_t stamp_ns = 0;           ///< when the entry was written
  std::int64_t sequence = 0;           ///< of the newest collective; 0 before the first
  std::int64_t transfer_sequence = 0;  ///< the oldest collective under way, else the newest
  std::int64_t transfer_bytes = 0;
  Standing standing;                  ///< as read: of that moment, not of `stamp_ns`
  std::int32_t transfer_running = 0;  ///< 1: entered and not left
  std::int32_t reporting = 0;         ///< not 0: this rank says why and ends the job with that code
  std::int32_t leaving = 0;           ///< 1: it is done, and will be gone
  std::uint32_t pid_namespace = 0;    ///< pids of two containers do not compare
  std::uint32_t transfers = 0;        ///< of `recent`
  std::array<char, 24> operation{};   ///< of that collective
  std::array<char, 24> channel{};
  std::array<BeatTransfer, 12> recent{};  ///< the newest, oldest first
};

class Heartbeat {
 public:
  /// Collective over the ranks of the host. Without shared memory each is alone, with a warning.
  explicit Heartbeat(const Launch& launch);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Overwrites this rank's entry; one thread at a time. Takes no lock and makes no system call.
  void publish(const Beat& beat) noexcept;
  /// Where this rank keeps its Standing (Trace::keep_standing_in), seen by the others at once.
  [[nodiscard]] std::atomic<std::uint64_t>& standing() noexcept;
  /// A number that the ranks of this host share, 0 at first; null where they cannot share memory.
  [[nodiscard]] std::atomic<std::uint64_t>* host_word() noexcept;
  /// The entries by local rank; each is one that was published as a whole.
  [[nodiscard]] std::vector<Beat> read() const;

 private:
  struct Entry;
  Entry* entries_ = nullptr;
  std::size_t bytes_ = 0;
  int mine_ = 0, count_ = 1;
  bool shared_ = true;
};

}  // namespace trireme
