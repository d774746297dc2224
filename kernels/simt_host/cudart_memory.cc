// CUDA's allocations, copies and fills on the host. By NVIDIA's header; nothing of CUDA is linked.
//
// Pageable host memory is read and written before a copy's call returns, as on a GPU; pinned memory
// when the stream comes to it, so that a buffer used again too early shows.

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <map>

#include "kernels/simt_host/streams.h"

namespace trireme::simt {
namespace {

std::map<const char*, size_t>& pinned() {
  static std::map<const char*, size_t> ranges;
  return ranges;
}

std::map<const char*, size_t>& managed() {
  static std::map<const char*, size_t> ranges;
  return ranges;
}
bool is_in(const std::map<const char*, size_t>& ranges, const void* p) {
  const auto* q = static_cast<const char*>(p);
  auto it = ranges.upper_bound(q);
  return it != ranges.begin() && q < (--it)->first + it->second;
}
bool is_pinned(const void* p) { return is_in(pinned(), p); }
bool is_managed(const void* p) { return is_in(managed(), p); }

struct Rows {
  size_t bytes, count, to_pitch, from_pitch;
};

/// The sides of a copy that are device memory; checked when it runs.
struct Sides {
  bool to_device, from_device;
};

void copy_rows(char* to, const char* from, const Rows& rows, Sides sides) {
  for (size_t row = 0; row < rows.count; ++row) {
    char* t = to + row * rows.to_pitch;
    const char* f = from + row * rows.from_pitch;
    if (sides.to_device) device_check_range(t, rows.bytes, "copy target");
    if (sides.from_device) device_check_range(f, rows.bytes, "copy source");
    std::memmove(t, f, rows.bytes);
    if (sides.to_device && sides.from_device) {
      device_copy_initialised(t, f, rows.bytes);
    } else if (sides.to_device) {
      device_mark_initialised(t, rows.bytes);
    }
  }
}

cudaError_t copy(void* to_address, const void* from_address, const Rows& rows, cudaMemcpyKind kind,
                 cudaStream_t stream) {
  auto* to = static_cast<char*>(to_address);
  const auto* from = static_cast<const char*>(from_address);
  const Sides sides = {is_device_memory(to), is_device_memory(from)};
  const bool wants_to = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool wants_from = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const auto contradicts = [](bool wants_device, bool is_device, const void* p) {
    return wants_device != is_device && !is_managed(p);
  };
  if (kind != cudaMemcpyDefault && (contradicts(wants_to, sides.to_device, to) ||
                                    contradicts(wants_from, sides.from_device, from)))
    return remember(cudaErrorInvalidValue);
  if (rows.bytes == 0 || rows.count == 0) return cudaSuccess;
  CUstream_st& s = queue_of(stream);
  const bool pageable_from = !sides.from_device && !is_pinned(from);
  const bool pageable_to = !sides.to_device && !is_pinned(to);
  if (is_capturing(s) && (pageable_from || pageable_to)) {
    s.capture->valid = false;
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  if (pageable_from) {
    auto staged = std::make_shared<std::vector<char>>(rows.bytes * rows.count);
    for (size_t row = 0; row < rows.count; ++row)
      std::memcpy(&(*staged)[row * rows.bytes], from + row * rows.from_pitch, rows.bytes);
    const Rows packed = {rows.bytes, rows.count, rows.to_pitch, rows.bytes};
    enqueue(stream, [=] { copy_rows(to, staged->data(), packed, sides); });
  } else {
    enqueue(stream, [=] { copy_rows(to, from, rows, sides); });
  }
  if (pageable_to) drive(&s, [&] { return s.queue.empty(); });
  return cudaSuccess;
}

cudaError_t allocate(void** p, size_t bytes, const char* kind) {
  static int count = 0;
  *p = nullptr;
  if (const cudaError_t error = refuse_while_capturing()) return error;
  if (bytes > memory_bytes() - std::min(memory_bytes(), device_bytes()))
    return remember(cudaErrorMemoryAllocation);
  *p = device_alloc(bytes, (std::string(kind) + " #" + std::to_string(++count)).c_str());
  return *p ? cudaSuccess : remember(cudaErrorMemoryAllocation);
}

}  // namespace
}  // namespace trireme::simt

using namespace trireme::simt;  // NOLINT: the functions of CUDA stand outside

extern "C" {

cudaError_t cudaMalloc(void** p, size_t bytes) { return allocate(p, bytes, "cudaMalloc"); }
/// Host and device share one memory here. Host writes are not seen: tests mark them by cudaMemset.
cudaError_t cudaMallocManaged(void** p, size_t bytes, unsigned) {
  const cudaError_t error = allocate(p, bytes, "cudaMallocManaged");
  if (error == cudaSuccess) managed()[static_cast<const char*>(*p)] = bytes;
  return error;
}
/// Not delayed until the streams are done: an operation in a queue that still uses it is found. But
/// where transfers are under way it waits for the device, as on a GPU.
cudaError_t cudaFree(void* p) {
  if (const cudaError_t error = p ? refuse_while_capturing() : cudaSuccess) return error;
  if (p) finish_outside();
  device_free(p);
  managed().erase(static_cast<const char*>(p));
  return cudaSuccess;
}
cudaError_t cudaHostAlloc(void** p, size_t bytes, unsigned) {
  if (const cudaError_t error = refuse_while_capturing()) return error;
  const size_t taken = (bytes + 255) / 256 * 256;
  *p = std::aligned_alloc(256, taken);
  if (!*p) return remember(cudaErrorMemoryAllocation);
  pinned()[static_cast<const char*>(*p)] = taken;
  return cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) {
  if (p && pinned().erase(static_cast<const char*>(p)) == 0) return remember(cudaErrorInvalidValue);
  std::free(p);
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return copy(to, from, {bytes, 1, bytes, bytes}, kind, stream);
}
cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  if (height > 1 && (width > to_pitch || width > from_pitch))
    return remember(cudaErrorInvalidPitchValue);
  return copy(to, from, {width, height, to_pitch, from_pitch}, kind, stream);
}
cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  if (const cudaError_t error = refuse_while_capturing()) return error;
  if (const cudaError_t error = cudaMemcpyAsync(to, from, bytes, kind, nullptr)) return error;
  return cudaStreamSynchronize(nullptr);
}

cudaError_t cudaMemset2DAsync(void* to, size_t pitch, int value, size_t width, size_t height,
                              cudaStream_t stream) {
  if (height > 1 && width > pitch) return remember(cudaErrorInvalidPitchValue);
  enqueue(stream, [=] {
    for (size_t row = 0; row < height; ++row) {
      char* at = static_cast<char*>(to) + row * pitch;
      device_check_range(at, width, "memset target");
      std::memset(at, value, width);
      device_mark_initialised(at, width);
    }
  });
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return cudaMemset2DAsync(to, bytes, value, bytes, bytes == 0 ? 0 : 1, stream);
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}

}  // extern "C"
