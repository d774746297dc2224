#include "pipeline/device_batches.h"

#include "tensor/arena.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

/// The same micro-batch with tensors from the arena.
MicroBatch lay_out(ArenaCursor& arena, const MicroBatch& batch) {
  MicroBatch copy = batch;
  const auto place = [&](ConstTensorView& tensor) {
    if (tensor.given()) tensor = arena.take(tensor.dtype, tensor.shape);
  };
  place(copy.input_ids);
  place(copy.targets);
  place(copy.positions);
  place(copy.first_key);
  return copy;
}

void copy(Context& context, const ConstTensorView& to, const ConstTensorView& from) {
  if (from.given())
    gpu::copy(const_cast<std::byte*>(to.data), from.data, from.bytes(), context.exec().stream);
}

}  // namespace

std::span<const MicroBatch> DeviceBatches::bring(Context& context,
                                                 std::span<const MicroBatch> batches) {
  if (!context.on_gpu()) return batches;
  ArenaCursor measure;
  for (const MicroBatch& batch : batches) lay_out(measure, batch);
  if (measure.bytes() > memory_.size()) {
    context.synchronize();
    memory_ = Memory();
    memory_ = Memory(context.device(), measure.bytes());
  }
  ArenaCursor arena(memory_.data());
  views_.clear();
  for (const MicroBatch& batch : batches) {
    const MicroBatch view = lay_out(arena, batch);
    copy(context, view.input_ids, batch.input_ids);
    copy(context, view.targets, batch.targets);
    copy(context, view.positions, batch.positions);
    copy(context, view.first_key, batch.first_key);
    views_.push_back(view);
  }
  return views_;
}

}  // namespace trireme
