// CUDA's devices, streams and events on the host. By NVIDIA's header; nothing of CUDA is linked.

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>

#include "kernels/simt_host/streams.h"

namespace trireme::simt {
namespace {

thread_local cudaError_t t_last_error = cudaSuccess;

struct ErrorName {
  cudaError_t error;
  const char *name, *text;
};
constexpr ErrorName kErrors[] = {
    {cudaSuccess, "cudaSuccess", "no error"},
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInvalidPitchValue, "cudaErrorInvalidPitchValue", "invalid pitch argument"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorNotSupported, "cudaErrorNotSupported", "not supported by host execution"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
    {cudaErrorIllegalState, "cudaErrorIllegalState", "the stream is in the wrong state"},
    {cudaErrorStreamCaptureUnsupported, "cudaErrorStreamCaptureUnsupported",
     "not permitted while a stream is captured"},
    {cudaErrorStreamCaptureInvalidated, "cudaErrorStreamCaptureInvalidated",
     "an earlier error made the capture invalid"},
    {cudaErrorStreamCaptureUnmatched, "cudaErrorStreamCaptureUnmatched",
     "the capture was begun on another stream"},
    {cudaErrorStreamCaptureUnjoined, "cudaErrorStreamCaptureUnjoined",
     "a stream that took part in the capture was not joined to the first one"},
    {cudaErrorStreamCaptureIsolation, "cudaErrorStreamCaptureIsolation",
     "a captured stream may not wait for what is outside the capture"},
};
const ErrorName& describe(cudaError_t error) {
  const auto* found = std::find_if(std::begin(kErrors), std::end(kErrors),
                                   [&](const ErrorName& e) { return e.error == error; });
  static constexpr ErrorName kOther = {cudaErrorUnknown, "cudaErrorUnknown", "host execution"};
  return found == std::end(kErrors) ? kOther : *found;
}

}  // namespace

cudaError_t remember(cudaError_t error) { return t_last_error = error; }

/// From so many waits on (TRIREME_SIMT_BREAKS_AT) the GPU of a test fails for good.
static bool broken() {
  static const char* const setting = std::getenv("TRIREME_SIMT_BREAKS_AT");
  static std::atomic<long> waits{0};
  return setting != nullptr && ++waits >= std::strtol(setting, nullptr, 10);
}

size_t memory_bytes() {
  const char* setting = std::getenv("TRIREME_SIMT_MEMORY_BYTES");
  return setting != nullptr ? std::strtoull(setting, nullptr, 10) : size_t(8) << 30;
}

}  // namespace trireme::simt

using namespace trireme::simt;  // NOLINT: the functions of CUDA stand outside

extern "C" {

// ---- streams ----

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  *s = make_stream();
  return cudaSuccess;
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* s, unsigned flags, int) {
  return cudaStreamCreateWithFlags(s, flags);
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (broken()) return remember(cudaErrorLaunchFailure);
  CUstream_st& s = queue_of(stream);
  if (is_capturing(s)) {
    s.capture->valid = false;
    return remember(cudaErrorStreamCaptureUnsupported);
  }
  drive(&s, [&] { return s.queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return queue_of(stream).queue.empty() ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  const cudaError_t error = cudaStreamSynchronize(s);
  remove_stream(s);
  return error;
}
cudaError_t cudaDeviceSynchronize() {
  if (const cudaError_t error = refuse_while_capturing()) return error;
  for (CUstream_st* s : all_streams()) drive(s, [&] { return s->queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t f, void* data) {
  enqueue(stream, [=] { f(data); });
  return cudaSuccess;
}

// ---- events ----

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  return *e = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* e) { return cudaEventCreateWithFlags(e, 0); }
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
  CUstream_st& s = queue_of(stream);
  if (is_capturing(s)) {
    e->capture = s.capture;
    e->nodes = s.last;
    return cudaSuccess;
  }
  e->capture = nullptr;
  const uint64_t n = ++e->recorded;
  enqueue(stream, [=] {
    e->done = std::max(e->done, n);
    e->when = std::chrono::steady_clock::now();
  });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned) {
  CUstream_st& s = queue_of(stream);
  if (e->capture) {
    if (e->capture->ended) return remember(cudaErrorInvalidValue);
    if (!is_capturing(s)) {  // joins the capture
      s.capture = e->capture;
      s.capture->streams.push_back(&s);
      s.last.clear();
    } else if (s.capture != e->capture) {
      s.capture->valid = e->capture->valid = false;
      return remember(cudaErrorStreamCaptureIsolation);
    }
    for (const size_t node : e->nodes)
      if (std::find(s.last.begin(), s.last.end(), node) == s.last.end()) s.last.push_back(node);
    return cudaSuccess;
  }
  if (is_capturing(s)) {
    s.capture->valid = false;
    return remember(cudaErrorStreamCaptureIsolation);
  }
  const uint64_t n = e->recorded;  // 0: never recorded, no wait
  enqueue_waiting(s, [=] { return e->done >= n; });
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  if (broken()) return remember(cudaErrorLaunchFailure);
  if (e->capture) return remember(cudaErrorStreamCaptureUnsupported);
  const uint64_t n = e->recorded;
  drive(nullptr, [=] { return e->done >= n; });
  return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t e) {
  return e->done >= e->recorded ? cudaSuccess : cudaErrorNotReady;
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t begin, cudaEvent_t end) {
  if (cudaEventQuery(begin) != cudaSuccess || cudaEventQuery(end) != cudaSuccess)
    return cudaErrorNotReady;
  *milliseconds = std::chrono::duration<float, std::milli>(end->when - begin->when).count();
  return cudaSuccess;
}

// ---- the device ----

cudaError_t cudaGetLastError() { return std::exchange(t_last_error, cudaSuccess); }
const char* cudaGetErrorString(cudaError_t error) { return trireme::simt::describe(error).text; }
const char* cudaGetErrorName(cudaError_t error) { return trireme::simt::describe(error).name; }
cudaError_t cudaDriverGetVersion(int* v) {
  const char* setting = std::getenv("TRIREME_SIMT_GPUS");
  const bool old = setting != nullptr && std::strcmp(setting, "old") == 0;
  return *v = old ? CUDART_VERSION - 2000 : CUDART_VERSION, cudaSuccess;
}
// What a test wants the machine to look like: TRIREME_SIMT_GPUS, how many (0: none, "old": a driver
// older than the toolkit), TRIREME_SIMT_GPU_NAME, TRIREME_SIMT_CAPABILITY (90),
// TRIREME_SIMT_MEMORY_BYTES of each GPU, and TRIREME_SIMT_FIRST_GPU, which of the host's is the
// first that this process sees.
cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  const char* first = std::getenv("TRIREME_SIMT_FIRST_GPU");
  const auto bus = static_cast<unsigned>((first != nullptr ? std::atoi(first) : 0) + device + 1);
  std::snprintf(text, static_cast<size_t>(length), "0000:%02x:00.0", bus & 255);
  return cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  const char* name = std::getenv("TRIREME_SIMT_GPU_NAME");
  *p = {};
  std::snprintf(p->name, sizeof p->name, "%s", name != nullptr ? name : "host execution");
  p->major = trireme::simt::capability() / 10;
  p->minor = trireme::simt::capability() % 10;
  p->multiProcessorCount = 4;
  p->totalGlobalMem = trireme::simt::memory_bytes();
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) {
  const char* setting = std::getenv("TRIREME_SIMT_GPUS");
  *n = setting != nullptr ? std::atoi(setting) : 1;
  if (setting != nullptr && std::strcmp(setting, "old") == 0) return cudaErrorInsufficientDriver;
  return *n > 0 ? cudaSuccess : cudaErrorNoDevice;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  if (attribute != cudaDevAttrMaxSharedMemoryPerBlockOptin) return remember(cudaErrorNotSupported);
  return *value = static_cast<int>(options().max_smem_bytes), cudaSuccess;
}
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { return *d = 0, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  const size_t used = trireme::simt::device_bytes();
  *total = trireme::simt::memory_bytes();
  return *free = *total - std::min(*total, used), cudaSuccess;
}

}  // extern "C"
