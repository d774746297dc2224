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
    copies_.push_back({std::exchange(tensor.data, next), next, bytes_of(tensor)});
    next += place(bytes_of(tensor));
  }
}

void HostState::fetch() {
  for (const Copy& copy : copies_)
    gpu::copy(copy.host, copy.device, copy.bytes, context_.exec().stream);
  context_.synchronize();
}

void HostState::store() {
  for (const Copy& copy : copies_)
    gpu::copy(copy.device, copy.host, copy.bytes, context_.exec().stream);
  context_.synchronize();
}

}  // namespace trireme
