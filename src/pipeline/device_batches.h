#pragma once

#include <span>
#include <vector>

#include "device/context.h"
#include "device/pinned_memory.h"
#include "pipeline/micro_batch.h"
#include "tensor/buffer.h"

namespace trireme {

/// A step's micro-batches where the context computes: the loader's on the CPU, copies on a GPU.
class DeviceBatches {
 public:
  /// With room for so many micro-batches of the first call's size.
  explicit DeviceBatches(std::int64_t micro_batches = 1)
      : room_(static_cast<std::size_t>(micro_batches)) {}
  /// Views valid until the next call. Allocates for more or larger micro-batches than any before.
  std::span<const MicroBatch> bring(Context& context, std::span<const MicroBatch> batches);

 private:
  std::size_t room_;
  PinnedMemory staging_;
  Memory memory_;
  gpu::Event copied_;  ///< staging_ has been read
  std::vector<MicroBatch> views_;
};

}  // namespace trireme
