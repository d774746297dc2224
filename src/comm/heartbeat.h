#pragma once
// Where every rank of this host stands, in memory that they share: the watchdog of one rank reads
// the others' entries, also when a rank is stopped or its main thread hangs.

#include <array>
#include <cstdint>
#include <vector>

#include "comm/launch.h"

namespace trireme {

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
  std::int32_t phase = 0;             ///< of base/trace.h
  std::int32_t transfer_running = 0;  ///< 1: entered and not left
  std::int32_t reporting = 0;         ///< 1: this rank ends the job and says why
  std::array<char, 24> operation{};   ///< of that collective
  std::array<char, 24> channel{};
};

class Heartbeat {
 public:
  /// Collective over the ranks of the host. Where they cannot share memory a warning says so and
  /// each sees itself alone.
  explicit Heartbeat(const Launch& launch);
  ~Heartbeat();
  Heartbeat(const Heartbeat&) = delete;
  Heartbeat& operator=(const Heartbeat&) = delete;

  /// Overwrites this rank's entry; one thread at a time. Takes no lock and makes no system call.
  void publish(const Beat& beat) noexcept;
  /// The entries by local rank; each is one that was published as a whole.
  [[nodiscard]] std::vector<Beat> read() const;

 private:
  struct Entry;
  Entry* entries_ = nullptr;
  std::size_t bytes_ = 0;
  int mine_ = 0, count_ = 1;
};

}  // namespace trireme
