#include "pipeline/stage_links.h"

#include <utility>

namespace trireme {

StageLinks::StageLinks(Communicator& group, std::vector<int> placement, const MakeChannel& make)
    : placement_(std::move(placement)), links_(placement_.size()) {
  for (int stage = 0; stage + 1 < stages(); ++stage) {
    const int a = rank_of(stage), b = rank_of(stage + 1);
    if (a == b) continue;
    const bool mine = group.rank() == a || group.rank() == b;
    Link& link = links_[static_cast<std::size_t>(stage)];
    link.group = group.split(mine ? 0 : 1 + group.rank());
    if (!mine) {
      link.group.reset();
      continue;
    }
    link.forward = make(*link.group, "pipeline.forward");
    link.backward = make(*link.group, "pipeline.backward");
  }
}

Pending StageLinks::exchange(int lower_stage, Way way, TensorView message, bool sends) {
  Link& link = links_.at(static_cast<std::size_t>(lower_stage));
  Communicator& channel = way == Way::kForward ? *link.forward : *link.backward;
  const Message half{1 - channel.rank(), {message.data, message.bytes()}};
  if (sends) return channel.start_exchange({&half, 1}, {});
  return channel.start_exchange({}, {&half, 1});
}

Pending StageLinks::send(int virtual_stage, Way way, TensorView message) {
  return exchange(way == Way::kForward ? virtual_stage : virtual_stage - 1, way, message, true);
}

Pending StageLinks::receive(int virtual_stage, Way way, TensorView message) {
  return exchange(way == Way::kForward ? virtual_stage - 1 : virtual_stage, way, message, false);
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
