#include "parallel/host_state.h"

#include "base/math.h"
#include "device/gpu.h"

namespace trireme {

namespace {

std::size_t bytes_of(const StateTensor& tensor) {
  return static_cast<std::size_t>(tensor.box.shape.count()) * size_of(tensor.dtype);
}

}  // namespace

HostState::HostState(Context& context, State state) : context_(context), host_(std::move(state)) {
  if (!context.on_gpu()) return;
  const auto place = [](std::size_t bytes) {
    return static_cast<std::size_t>(round_up(static_cast<std::int64_t>(bytes), 64));
  };
  std::size_t total = 0;
  for (const StateTensor& tensor : host_.tensors) total += place(bytes_of(tensor));
  memory_ = HostBuffer(total);
  std::byte* next = memory_.data();
  for (StateTensor& tensor : host_.tensors) {
    device_.push_back(std::exchange(tensor.data, next));
    next += place(bytes_of(tensor));
  }
}

void HostState::fetch() {
  for (std::size_t i = 0; i < device_.size(); ++i) {
    const StateTensor& tensor = host_.tensors[i];
    gpu::copy(tensor.data, device_[i], bytes_of(tensor), context_.exec().stream);
  }
  context_.synchronize();
}

void HostState::store() {
  for (std::size_t i = 0; i < device_.size(); ++i) {
    const StateTensor& tensor = host_.tensors[i];
    gpu::copy(device_[i], tensor.data, bytes_of(tensor), context_.exec().stream);
  }
  context_.synchronize();
}

}  // namespace trireme
