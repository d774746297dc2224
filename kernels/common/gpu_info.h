#pragma once
// What a GPU is, for ops that choose a kernel by it.

#include "device/context.h"
#include "device/gpu.h"

namespace trireme {

/// A memo: asking a driver for a GPU's properties takes longer than a product.
inline const gpu::Info& info_of(Device device) {
  thread_local int known = -1;
  thread_local gpu::Info info;
  if (known != device.index) {
    info = gpu::info(device.index);
    known = device.index;
  }
  return info;
}
inline const gpu::Info& info_of(const Context& context) { return info_of(context.device()); }

/// Whether it runs code for sm_90a, whose instructions are not in Hopper's successors.
inline bool runs_sm90a(int capability) { return capability == 90; }
inline bool runs_sm90a(const gpu::Info& info) { return runs_sm90a(info.capability); }

/// Whether its tensor cores multiply fp8: since Ada.
inline bool multiplies_fp8(int capability) { return capability >= 89; }
inline bool multiplies_fp8(const gpu::Info& info) { return multiplies_fp8(info.capability); }

}  // namespace trireme
