#pragma once
// Memory that the ranks of one host map together, for transfers between them: each shard is copied
// in once and out once, where MPI's own way through shared memory takes two of each.

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include "comm/communicator.h"

namespace trireme {

/// `slots` slots of one area for each rank. A rank writes to its own areas only, and shows the
/// others how far it is by its mark on the slot: zero at first, stored with release order after
/// what it vouches for, loaded with acquire order before.
class SharedSlots {
 public:
  /// Collective and blocking. Null on every rank where one cannot map the memory: ranks on several
  /// hosts, or in containers that do not see each other's processes. Pages are taken when they are
  /// first written, from no file system (a container's /dev/shm may be small), and return when the
  /// last rank has gone, however it ended.
  static std::unique_ptr<SharedSlots> open(Communicator& group, std::size_t slots,
                                           std::size_t area_bytes);
  ~SharedSlots();
  SharedSlots(const SharedSlots&) = delete;
  SharedSlots& operator=(const SharedSlots&) = delete;

  [[nodiscard]] std::size_t area_bytes() const { return area_bytes_; }
  [[nodiscard]] std::byte* area(std::size_t slot, int rank) const;
  void mark(std::size_t slot, int rank, std::uint64_t value);
  /// Every rank's mark on the slot is at least `value`.
  [[nodiscard]] bool all_reached(std::size_t slot, std::uint64_t value) const;

 private:
  SharedSlots(std::byte* memory, std::size_t slots, std::size_t ranks, std::size_t area_bytes);
  [[nodiscard]] std::atomic<std::uint64_t>& mark_of(std::size_t slot, std::size_t rank) const;

  std::byte* memory_;
  std::size_t slots_, ranks_, area_bytes_;
};

}  // namespace trireme
