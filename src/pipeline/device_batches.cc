#include "pipeline/device_batches.h"

#include <algorithm>
#include <cstring>

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
  place(copy.numbers);
  return copy;
}

void fill(const ConstTensorView& to, const ConstTensorView& from) {
  if (from.given()) std::memcpy(const_cast<std::byte*>(to.data), from.data, from.bytes());
}

}  // namespace

std::span<const MicroBatch> DeviceBatches::bring(Context& context,
                                                 std::span<const MicroBatch> batches) {
  if (!context.on_gpu()) return batches;
  ArenaCursor measure;
  for (std::size_t i = 0; i < std::max(room_, batches.size()); ++i)
    lay_out(measure, batches[std::min(i, batches.size() - 1)]);
  if (!copied_) copied_ = gpu::Event(gpu::make_event());
  if (measure.bytes() > memory_.size()) {
    context.synchronize();
    memory_ = Memory();
    staging_ = PinnedMemory();
    memory_ = Memory(context.device(), measure.bytes());
    staging_ = PinnedMemory(measure.bytes());
  }
  gpu::wait_here(copied_.get());
  ArenaCursor host(staging_.data()), device(memory_.data());
  views_.clear();
  views_.reserve(std::max(room_, batches.size()));
  for (const MicroBatch& batch : batches) {
    const MicroBatch staged = lay_out(host, batch);
    fill(staged.input_ids, batch.input_ids);
    fill(staged.targets, batch.targets);
    fill(staged.positions, batch.positions);
    fill(staged.first_key, batch.first_key);
    fill(staged.numbers, batch.numbers);
    views_.push_back(lay_out(device, batch));
  }
  gpu::copy(memory_.data(), staging_.data(), host.bytes(), context.exec().stream);
  gpu::record(copied_.get(), context.exec().stream);
  return views_;
}

}  // namespace trireme
