// The device, streams, events, graphs and errors.
#include "kernels/ptx_host/cudart.h"

#include <cstdio>
#include <cstring>
#include <vector>

#include "kernels/ptx_host/text.h"

namespace trireme::ptx {
namespace {

std::string broken_by;  // the first kernel that failed
cudaError_t broken = cudaSuccess, last = cudaSuccess;

using Work = std::vector<std::function<void()>>;
Work* captured = nullptr;  // one capture at a time
cudaStream_t capturing = nullptr;

}  // namespace

cudaError_t fail(cudaError_t error) { return last = error; }
cudaError_t sticky_error() { return broken; }

cudaError_t perform(cudaStream_t, std::function<void()> work) {
  if (broken != cudaSuccess) return broken;
  if (captured) {
    captured->push_back(std::move(work));
    return cudaSuccess;
  }
  try {
    work();
  } catch (const PtxError& error) {
    broken_by = error.what();
    std::fprintf(stderr, "ptx_host: %s\n", error.what());
    broken = last = cudaErrorLaunchFailure;
  }
  return broken;
}

}  // namespace trireme::ptx

using namespace trireme::ptx;

struct CUstream_st {};
struct CUevent_st {};
struct CUgraph_st {
  Work work;
};
struct CUgraphExec_st {
  Work work;
};

extern "C" {

cudaError_t cudaGetDeviceCount(int* count) { return *count = 1, cudaSuccess; }
cudaError_t cudaGetDevice(int* device) { return *device = 0, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaDriverGetVersion(int* version) { return *version = 13000, cudaSuccess; }
cudaError_t cudaRuntimeGetVersion(int* version) { return *version = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int bytes, int) {
  std::snprintf(text, std::size_t(bytes), "0000:00:00.0");
  return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* low, int* high) {
  return *low = *high = 0, cudaSuccess;
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::snprintf(p->name, sizeof p->name, "PTX on the host, as an H100");
  p->major = 9;
  p->multiProcessorCount = 132;
  p->totalGlobalMem = std::size_t(80) << 30;
  p->warpSize = 32;
  p->maxThreadsPerBlock = 1024;
  p->sharedMemPerBlock = 48 << 10;
  p->sharedMemPerBlockOptin = 227 << 10;
  p->sharedMemPerMultiprocessor = 228 << 10;
  p->regsPerBlock = p->regsPerMultiprocessor = 65536;
  p->l2CacheSize = 50 << 20;
  return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int) {
  switch (attribute) {
    case cudaDevAttrMultiProcessorCount:
      *value = 132;
      break;
    case cudaDevAttrComputeCapabilityMajor:
      *value = 9;
      break;
    case cudaDevAttrComputeCapabilityMinor:
      *value = 0;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      *value = 227 << 10;
      break;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      *value = 48 << 10;
      break;
    case cudaDevAttrWarpSize:
      *value = 32;
      break;
    case cudaDevAttrMaxThreadsPerBlock:
      *value = 1024;
      break;
    default:
      *value = 0;
  }
  return cudaSuccess;
}

cudaError_t cudaGetLastError() {
  const cudaError_t error = broken != cudaSuccess ? broken : last;
  last = cudaSuccess;
  return error;
}
cudaError_t cudaPeekAtLastError() { return broken != cudaSuccess ? broken : last; }
const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorLaunchFailure) return broken_by.c_str();
  return error == cudaSuccess                 ? "no error"
         : error == cudaErrorMemoryAllocation ? "out of memory"
                                              : "an error";
}
const char* cudaGetErrorName(cudaError_t error) {
  return error == cudaSuccess ? "cudaSuccess" : "cudaErrorLaunchFailure";
}
cudaError_t cudaDeviceSynchronize() { return broken; }

cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
  return *stream = new CUstream_st, cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return *stream = new CUstream_st, cudaSuccess;
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned) {
  return *stream = new CUstream_st, cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t) { return broken; }
cudaError_t cudaStreamWaitEvent(cudaStream_t, cudaEvent_t, unsigned) { return broken; }
cudaError_t cudaStreamQuery(cudaStream_t) { return broken; }

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return *event = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) { return *event = new CUevent_st, cudaSuccess; }
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t, cudaStream_t) { return broken; }
cudaError_t cudaEventQuery(cudaEvent_t) { return broken; }
cudaError_t cudaEventSynchronize(cudaEvent_t) { return broken; }
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  return *milliseconds = 1, cudaSuccess;
}

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode) {
  captured = new Work;
  capturing = stream;
  return cudaSuccess;
}
cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  *status =
      captured && stream == capturing ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusNone;
  return cudaSuccess;
}
cudaError_t cudaStreamEndCapture(cudaStream_t, cudaGraph_t* graph) {
  *graph = new CUgraph_st{std::move(*captured)};
  delete captured;
  captured = nullptr;
  return cudaSuccess;
}
cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph, unsigned long long) {
  *exec = new CUgraphExec_st{graph->work};
  return cudaSuccess;
}
cudaError_t cudaGraphLaunch(cudaGraphExec_t exec, cudaStream_t stream) {
  for (const auto& work : exec->work)
    if (const cudaError_t error = perform(stream, work); error != cudaSuccess) return error;
  return cudaSuccess;
}
cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  delete graph;
  return cudaSuccess;
}
cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
  delete exec;
  return cudaSuccess;
}

}  // extern "C"
