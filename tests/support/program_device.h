#pragma once

#include "device/device.h"
#include "device/gpu.h"

namespace trireme {

/// The GPU of a program that has one (or its execution on the host), else the CPU.
inline Device program_device() {
  return {gpu::backend_name() == "none" ? DeviceKind::kCpu : DeviceKind::kCuda, 0};
}

}  // namespace trireme
