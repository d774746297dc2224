#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// The ways between the virtual stages of a pipeline: for each pair of neighbours on two ranks a
/// channel forward and one back, so that no transfer queues behind another's. Messages of a way go
/// in order of micro-batches on both sides.
class StageLinks {
 public:
  using MakeChannel =
      std::function<std::unique_ptr<Communicator>(Communicator& group, const char*)>;

  /// One stage: there is nowhere to go.
  StageLinks() = default;
  /// `placement`: the rank of `group` that holds each virtual stage. Collective over `group`.
  StageLinks(Communicator& group, std::vector<int> placement, const MakeChannel& make);

  enum class Way : std::uint8_t { kForward, kBackward };
  [[nodiscard]] int stages() const { return static_cast<int>(placement_.size()); }
  [[nodiscard]] int rank_of(int virtual_stage) const {
    return placement_[static_cast<std::size_t>(virtual_stage)];
  }
  /// From `virtual_stage` to the one behind it (forward) or before it (backward), which is on
  /// another rank.
  Pending send(int virtual_stage, Way way, TensorView message);
  /// At `virtual_stage`, what the one before it (forward) or behind it (backward) sends.
  Pending receive(int virtual_stage, Way way, TensorView message);
  [[nodiscard]] TrafficCounters counters() const;

 private:
  /// Between virtual stages i and i + 1.
  struct Link {
    std::unique_ptr<Communicator> group, forward, backward;
  };
  Pending exchange(int lower_stage, Way way, TensorView message, bool sends);

  std::vector<int> placement_;
  std::vector<Link> links_;
};

}  // namespace trireme
