#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "comm/communicator.h"
#include "pipeline/schedule.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// The ways between the virtual stages of a pipeline: for neighbours on two ranks a channel each
/// way: no transfer queues behind another's. Messages go in order of micro-batches on both sides.
class StageLinks {
 public:
  using MakeChannel =
      std::function<std::unique_ptr<Communicator>(Communicator& group, const char*)>;

  /// One stage: there is nowhere to go.
  StageLinks() = default;
  /// `placement`: the rank of `group` that holds each virtual stage. Collective over `group`.
  StageLinks(Communicator& group, const std::vector<std::int32_t>& placement,
             const MakeChannel& make);

  /// What `made`, F or B, leaves for its stage's neighbour on another rank: at either rank.
  Pending send(const Action& made, TensorView message);
  Pending receive(const Action& made, TensorView message);
  /// Communicator::starts_in_one_order of any of them.
  [[nodiscard]] bool start_in_one_order() const;
  [[nodiscard]] TrafficCounters counters() const;

 private:
  /// Between virtual stages i and i + 1.
  struct Link {
    std::unique_ptr<Communicator> group, forward, backward;
  };
  [[nodiscard]] Communicator& channel_of(const Action& made) const;

  std::vector<Link> links_;
};

}  // namespace trireme
