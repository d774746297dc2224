#pragma once
// The last transfers of this process, kept for the moment when the job hangs: which was entered,
// which not left. After the flight recorder of PyTorch's NCCL back end; ranks are compared by a
// group's sequence numbers.

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <string_view>
#include <vector>

namespace trireme {

/// The collectives that a group of ranks must enter in one order, and the number of one in it.
struct CollectiveId {
  std::uint32_t group = 0;    ///< of name and ranks, equal on all of them; 0: cannot be compared
  std::int64_t sequence = 0;  ///< 1, 2, ... over the group's collectives; 0: has none (an exchange)
};
std::uint32_t group_hash(std::string_view name, std::span<const int> job_ranks) noexcept;

struct TransferRecord {
  std::int64_t sequence =
      0;                   ///< 1, 2, ... in the order of starting, over all channels of the process
  std::int64_t bytes = 0;  ///< of this rank's operand
  std::int64_t begin_ns = 0;  ///< steady clock
  std::int64_t end_ns = 0;    ///< 0 while it is under way
  CollectiveId id;
  const char* operation = "";      ///< a literal
  std::array<char, 24> channel{};  ///< cut where longer, always terminated
};

/// A ring of fixed size; any thread writes and reads, nothing allocates while recording.
class FlightRecorder {
 public:
  static constexpr std::int64_t kRecords = 64;
  /// The sequence number to hand to `end`. `operation` must be a literal.
  std::int64_t begin(const char* operation, std::int64_t bytes, std::string_view channel,
                     const CollectiveId& id = {}) noexcept;
  void end(std::int64_t sequence) noexcept;
  /// Of the newest transfer; 0 before the first.
  [[nodiscard]] std::int64_t last_sequence() const noexcept;
  /// Oldest first, at most kRecords.
  [[nodiscard]] std::vector<TransferRecord> records() const;
  /// The newest, oldest first; the oldest still under way replaces the first. Returns how many.
  std::size_t recent(std::span<TransferRecord> records) const noexcept;
  /// The oldest one under way, else the newest, else one with sequence 0: where a hung rank stands.
  [[nodiscard]] TransferRecord current() const noexcept;

 private:
  [[nodiscard]] const TransferRecord& at(std::int64_t sequence) const {
    return ring_[static_cast<std::size_t>(sequence % kRecords)];
  }
  mutable std::mutex mutex_;
  std::int64_t last_ = 0;
  std::array<TransferRecord, kRecords> ring_;
};

}  // namespace trireme
