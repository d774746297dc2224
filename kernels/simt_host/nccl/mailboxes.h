#pragma once
// Memory that the processes of one communicator share: for each pair of ranks a box that a message
// passes through in pieces. Nobody sends ahead: a message ends when its receiver has taken all.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace trireme::simt {

inline constexpr int kRanksMax = 64;

class Mailboxes {
 public:
  static constexpr std::size_t kPieceBytes = 16 << 10;
  /// What a box holds: a piece of a message of `bytes` bytes, sent by operation `operation` from
  /// `place` in registered memory.
  struct Box {
    std::atomic<std::uint64_t> posted, taken;
    std::uint64_t bytes, operation, place;
    std::array<char, kPieceBytes> piece;
  };
  struct Rank {
    std::atomic<std::int32_t> pid;  // 0: not there yet
    std::atomic<std::int32_t> left;
    std::array<char, 120> standing;  // what it waits in, for who reports a deadlock
  };

  /// Makes or finds the memory called `name`, waits until all ranks have, and takes the name away.
  /// Throws std::runtime_error with what the system says.
  Mailboxes(const std::string& name, int rank, int ranks);
  ~Mailboxes();
  Mailboxes(const Mailboxes&) = delete;
  Mailboxes& operator=(const Mailboxes&) = delete;

  [[nodiscard]] Box& box(int from, int to) const {
    return boxes_[static_cast<std::size_t>(from) * static_cast<std::size_t>(ranks_) +
                  static_cast<std::size_t>(to)];
  }
  /// A rank whose process has ended without leaving; -1 where there is none.
  [[nodiscard]] int dead_rank() const;
  void stand(std::string_view where);
  /// "rank 0 waits in ...", a line each.
  [[nodiscard]] std::string standing() const;
  /// This rank will not come again.
  void leave() { of_ranks_[rank_].left.store(1); }

 private:
  int rank_, ranks_;
  std::size_t bytes_;
  void* memory_ = nullptr;
  std::atomic<std::int32_t>* attached_ = nullptr;
  Rank* of_ranks_ = nullptr;
  Box* boxes_ = nullptr;
};

}  // namespace trireme::simt
