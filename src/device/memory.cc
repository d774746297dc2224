#include "device/memory.h"

namespace trireme {

Memory::Memory(Device device, std::size_t bytes) {
  if (device.kind == DeviceKind::kCpu) {
    host_ = HostBuffer(bytes);
    return;
  }
  if (bytes == 0) return;
  gpu::select(device.index);
  gpu_ = gpu::Bytes(gpu::allocate(bytes));
  gpu_bytes_ = bytes;
  gpu::clear(gpu_.get(), bytes, nullptr);
  gpu::synchronize(nullptr);
}

}  // namespace trireme
