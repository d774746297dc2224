#include "pipeline/stage_links.h"

#include <algorithm>

namespace trireme {

StageLinks::StageLinks(Communicator& group, const std::vector<std::int32_t>& placement,
                       const MakeChannel& make)
    : links_(placement.size()) {
  for (std::size_t stage = 0; stage + 1 < placement.size(); ++stage) {
    const int a = placement[stage], b = placement[stage + 1];
    if (a == b) continue;
    const bool mine = group.rank() == a || group.rank() == b;
    Link& link = links_[stage];
    link.group = group.split(mine ? 0 : 1 + group.rank());
    link.forward = make(*link.group, "pipeline.forward");
    link.backward = make(*link.group, "pipeline.backward");
    if (!mine) link = {};
  }
}

Communicator& StageLinks::channel_of(const Action& made) const {
  const bool forward = made.kind == ActionKind::kForward;
  const Link& link = links_.at(static_cast<std::size_t>(made.virtual_stage - (forward ? 0 : 1)));
  return forward ? *link.forward : *link.backward;
}

Pending StageLinks::send(const Action& made, TensorView message) {
  Communicator& channel = channel_of(made);
  const Message whole = message_of(1 - channel.rank(), message);
  return channel.start_exchange({&whole, 1}, {});
}

Pending StageLinks::receive(const Action& made, TensorView message) {
  Communicator& channel = channel_of(made);
  const Message whole = message_of(1 - channel.rank(), message);
  return channel.start_exchange({}, {&whole, 1});
}

bool StageLinks::start_in_one_order() const {
  return std::any_of(links_.begin(), links_.end(), [](const Link& link) {
    return link.forward != nullptr && link.forward->starts_in_one_order();
  });
}

TrafficCounters StageLinks::counters() const {
  TrafficCounters sum;
  for (const Link& link : links_) {
    for (const auto* channel : {link.forward.get(), link.backward.get()}) {
      if (channel == nullptr) continue;
      const TrafficCounters counters = channel->counters();
      sum.bytes_sent += counters.bytes_sent;
      sum.transfers += counters.transfers;
      sum.exposed_ns += counters.exposed_ns;
    }
  }
  return sum;
}

}  // namespace trireme
