#pragma once

#include "device/context.h"
#include "device/gpu.h"

namespace trireme {

/// Of the context's GPU. A memo: asking a driver for its properties takes longer than a product.
inline const gpu::Info& gpu_info(const Context& context) {
  thread_local int known = -1;
  thread_local gpu::Info info;
  if (known != context.device().index) {
    info = gpu::info(context.device().index);
    known = context.device().index;
  }
  return info;
}

}  // namespace trireme
