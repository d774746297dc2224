#pragma once

#include <span>
#include <vector>

#include "device/context.h"
#include "device/pinned_memory.h"
#include "pipeline/micro_batch.h"
#include "tensor/buffer.h"

namespace trireme {

/// The micro-batches of a step where the context computes: those of the loader themselves on the
/// CPU, copies of them on a GPU.
class DeviceBatches {
 public:
  /// Views that stay valid until the next call. Allocates where a step has more micro-batches, or
  /// larger ones, than any before.
  std::span<const MicroBatch> bring(Context& context, std::span<const MicroBatch> batches);

 private:
  PinnedMemory staging_;
  Memory memory_;
  gpu::Event copied_;  ///< staging_ has been read
  std::vector<MicroBatch> views_;
};

}  // namespace trireme
