#include "parallel/host_state.h"

#include "base/math.h"
#include "tensor/transfer.h"

namespace trireme {

namespace {

std::size_t bytes_of(const StateTensor& tensor) {
  return static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype);
}

}  // namespace

HostState::HostState(Context& context, State state) : context_(context), host_(std::move(state)) {
  const auto copied = [&](const StateTensor& tensor) {
    return context.on_gpu() || !tensor.contiguous();
  };
  const auto place = [](std::size_t bytes) {
    return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), 64));
  };
  std::size_t total = 0;
  for (const StateTensor& tensor : host_.tensors) {
    if (copied(tensor)) total += place(bytes_of(tensor));
  }
  if (total > 0) memory_ = HostBuffer(total);
  std::byte* next = memory_.data();
  for (StateTensor& tensor : host_.tensors) {
    if (!copied(tensor)) continue;
    const std::size_t element = size_of(tensor.dtype);
    Copy copy{tensor.data, next, bytes_of(tensor), bytes_of(tensor), 1};
    if (!tensor.contiguous()) {
      copy.rows = tensor.box.shape[0];
      copy.row_bytes = static_cast<std::size_t>(tensor.row_size()) * element;
      copy.device_stride_bytes = static_cast<std::size_t>(tensor.row_stride) * element;
    }
    copies_.push_back(copy);
    tensor.data = next;
    tensor.row_stride = 0;
    next += place(bytes_of(tensor));
  }
}

void HostState::copy_all(Direction direction) {
  for (const Copy& copy : copies_) {
    for (std::int64_t row = 0; row < copy.rows; ++row) {
      std::byte* host = copy.host + static_cast<std::size_t>(row) * copy.row_bytes;
      std::byte* device = copy.device + static_cast<std::size_t>(row) * copy.device_stride_bytes;
      if (direction == Direction::kToHost) copy_bytes(context_, host, device, copy.row_bytes);
      if (direction == Direction::kToDevice) copy_bytes(context_, device, host, copy.row_bytes);
    }
  }
  context_.synchronize();
}

void HostState::fetch() { copy_all(Direction::kToHost); }
void HostState::store() { copy_all(Direction::kToDevice); }

}  // namespace trireme
