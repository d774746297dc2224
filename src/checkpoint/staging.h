#pragma once
// Where the bytes of a save wait for the disk: one thread copies tensors in, another writes them
// out and gives the room back. A training step waits for the copy alone, as long as there is room.
// A save that is waited for needs no copy of what lies in host memory as it is written.

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "checkpoint/own_shards.h"
#include "device/context.h"
#include "device/gpu.h"
#include "device/host_memory.h"
#include "device/pinned_memory.h"
#include "store/state.h"

namespace trireme {

/// What `Staging::take` throws after `cancel`.
class SaveCancelled : public std::exception {
 public:
  [[nodiscard]] const char* what() const noexcept override { return "the save was cancelled"; }
};

/// What the tensors do while their save is written.
enum class Meanwhile : std::uint8_t {
  kChange,  ///< once they are staged
  kStay,    ///< until the last shard is released
};

/// A ring of memory, taken once. Shards go through it in their list's order, each contiguous.
class Staging {
 public:
  /// `context` of the tensors' GPU (staging memory is pinned); null for host memory.
  Staging(std::int64_t bytes, Context* context);
  [[nodiscard]] std::int64_t bytes() const { return bytes_; }
  /// Takes the pages from the system now, so that the first copy does not. Any thread, any time.
  void populate() noexcept;

  // The thread that owns the tensors.
  /// A new save; nothing of the last is left. Until all is staged `state` stays as it is. What is
  /// copied (is_copied) is in shards of at most `bytes()`.
  void open(const State& state, std::vector<OwnShard> shards,
            Meanwhile meanwhile = Meanwhile::kChange);
  /// Copies what fits, waiting at most so long. True once all is staged or the save cancelled.
  bool stage(std::chrono::milliseconds patience);

  // The thread that writes.
  /// The bytes of the next shard; waits for them. They stay until `release`.
  std::span<const std::byte> take();
  /// Gives back the room of the shard that was taken.
  void release();

  /// Any thread: nobody waits any longer; `take` throws SaveCancelled.
  void cancel();

 private:
  struct Batch {
    std::size_t begin = 0, end = 0;
  };
  Batch claim(std::chrono::milliseconds patience);
  [[nodiscard]] std::optional<std::int64_t> room_for(std::int64_t bytes) const;
  void copy(Batch batch);
  [[nodiscard]] std::byte* place_of(std::size_t shard) const;
  /// In the ring.
  [[nodiscard]] std::int64_t room_of(std::size_t shard) const;

  std::int64_t bytes_;
  Context* context_;
  PinnedMemory pinned_;
  HostBuffer host_;
  const State* state_ = nullptr;
  std::vector<OwnShard> shards_;
  std::vector<bool> in_place_;  // of each shard

  std::mutex mutex_;  // guards what follows
  std::condition_variable changed_;
  // Where each shard begins, counted on for ever: the ring begins anew at multiples of its size.
  std::vector<std::int64_t> begins_;
  std::int64_t head_ = 0;
  std::size_t claimed_ = 0, staged_ = 0, taken_ = 0, released_ = 0;
  bool cancelled_ = false;
};

/// Whether a tensor goes through the ring: not if contiguous in host memory (no `gpu`).
bool is_copied(const StateTensor& tensor, Meanwhile meanwhile, const Context* gpu);

/// The memory in which all shards that are copied stand at once.
std::int64_t copied_bytes(const State& state, const std::vector<OwnShard>& shards,
                          Meanwhile meanwhile, const Context* gpu);

}  // namespace trireme
