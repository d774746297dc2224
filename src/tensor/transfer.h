#pragma once
// Between a tensor of a context's device and host memory.

#include <cstring>
#include <span>

#include "device/context.h"
#include "device/gpu.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// In the order of the context's stream, between places that its device reaches.
inline void copy_bytes(Context& context, std::byte* to, const std::byte* from, std::size_t bytes) {
  if (bytes == 0) return;
  if (context.on_gpu()) return gpu::copy(to, from, bytes, context.exec().stream);
  std::memcpy(to, from, bytes);
}

/// `count` elements between flat tensors of one type: to[to_begin ...] = from[from_begin ...].
inline void copy_elements(Context& context, const TensorView& to, std::int64_t to_begin,
                          const ConstTensorView& from, std::int64_t from_begin,
                          std::int64_t count) {
  const auto bytes = [&](std::int64_t elements) {
    return static_cast<std::size_t>(elements) * size_of(to.dtype);
  };
  copy_bytes(context, to.data + bytes(to_begin), from.data + bytes(from_begin), bytes(count));
}

/// tensor = the elements at `host`, which may be reused at once.
inline void copy_in(Context& context, TensorView tensor, std::span<const std::byte> host) {
  expect(host.size() == tensor.bytes(), "{} bytes for a tensor of {}", host.size(), tensor.bytes());
  if (context.device().kind == DeviceKind::kCpu) {
    std::memcpy(tensor.data, host.data(), host.size());
    return;
  }
  gpu::copy(tensor.data, host.data(), host.size(), context.exec().stream);
  context.synchronize();
}

/// host = the elements of `tensor`, once all that was asked of the context is done.
inline void copy_out(Context& context, std::span<std::byte> host, ConstTensorView tensor) {
  expect(host.size() == tensor.bytes(), "{} bytes for a tensor of {}", host.size(), tensor.bytes());
  if (context.device().kind == DeviceKind::kCpu) {
    std::memcpy(host.data(), tensor.data, host.size());
    return;
  }
  gpu::copy(host.data(), tensor.data, host.size(), context.exec().stream);
  context.synchronize();
}

}  // namespace trireme
