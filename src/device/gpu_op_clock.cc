#include "device/gpu_op_clock.h"

#include <cmath>

namespace trireme {

void GpuOpClock::begin() {
  if (open_ == events_.size()) {
    events_.push_back({gpu::Event(gpu::make_timing_event()), gpu::Event(gpu::make_timing_event())});
  }
  gpu::record(events_[open_++].begin.get(), stream_);
}

std::int64_t GpuOpClock::end() {
  const Events& mine = events_[--open_];
  gpu::record(mine.end.get(), stream_);
  return std::llround(1e3 * gpu::elapsed_microseconds(mine.begin.get(), mine.end.get()));
}

}  // namespace trireme
