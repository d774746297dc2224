#pragma once

#include <vector>

#include "base/op_trace.h"
#include "device/gpu.h"

namespace trireme {

/// Events around what a GPU's stream is given.
class GpuOpClock : public OpClock {
 public:
  explicit GpuOpClock(void* stream) : stream_(stream) {}
  void begin() override;
  std::int64_t end() override;

 private:
  struct Events {
    gpu::Event begin, end;
  };
  void* stream_;
  std::vector<Events> events_;  ///< of each depth
  std::size_t open_ = 0;
};

}  // namespace trireme
