#include "device/memory.h"

#include "device/gpu.h"

namespace trireme {

Memory::Memory(Device device, std::size_t bytes) {
  if (device.kind == DeviceKind::kCpu) {
    host_ = HostBuffer(bytes);
    return;
  }
  if (bytes == 0) return;
  gpu::select(device.index);
  gpu_ = gpu::allocate(bytes);
  gpu_bytes_ = bytes;
  gpu::clear(gpu_, bytes, nullptr);
  gpu::synchronize(nullptr);
}

Memory::~Memory() {
  if (gpu_ != nullptr) gpu::release(gpu_);
}

}  // namespace trireme
