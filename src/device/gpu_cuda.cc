// By CUDA's runtime interface; in a test build by kernels/simt_host, on the host.

#include <cuda_runtime_api.h>

#include <array>
#include <cstdlib>
#include <sstream>
#include <vector>

#include "base/error.h"
#include "base/human_format.h"
#include "device/gpu.h"

namespace trireme::gpu {
namespace {

/// What only a defect of this program brings about.
bool is_defect(cudaError_t error) {
  return error == cudaErrorInvalidValue || error == cudaErrorInvalidResourceHandle ||
         error == cudaErrorInvalidDevicePointer || error == cudaErrorIllegalState ||
         (error >= cudaErrorStreamCaptureUnsupported && error <= cudaErrorCapturedEvent);
}

void check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) return;
  const char *text = cudaGetErrorString(error), *name = cudaGetErrorName(error);
  if (is_defect(error)) throw InternalError("{}: {} ({})", call, text, name);
  throw DeviceError(
      "{}: {} ({}). What an earlier call asked for may have failed; dmesg and nvidia-smi -q tell "
      "of a fault of the GPU",
      call, text, name);
}

std::byte* checked_memory(cudaError_t error, void* memory, std::size_t bytes, const char* kind) {
  if (error == cudaSuccess) return static_cast<std::byte*>(memory);
  cudaGetLastError();
  std::size_t free = 0, total = 0;
  cudaMemGetInfo(&free, &total);
  throw OutOfMemory("{} of {} memory were refused, {} are free of the GPU's {} ({})",
                    format_bytes(static_cast<std::int64_t>(bytes)), kind,
                    format_bytes(static_cast<std::int64_t>(free)),
                    format_bytes(static_cast<std::int64_t>(total)), cudaGetErrorString(error));
}

struct MemoryInfo {
  std::size_t free = 0, total = 0;
};
MemoryInfo memory_info() {
  MemoryInfo memory;
  check(cudaMemGetInfo(&memory.free, &memory.total), "cudaMemGetInfo");
  return memory;
}

/// A kernel that is loaded when it is first launched waits for the whole device, also for a
/// transfer that spins there until this rank has done more: all are loaded at the start. And 8
/// streams or more would share hardware queues, one waiting behind another.
void set_environment() {
  ::setenv("CUDA_MODULE_LOADING", "EAGER", 0);
  ::setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 0);
}

cudaStream_t stream_of(void* stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t event_of(void* event) { return static_cast<cudaEvent_t>(event); }

}  // namespace

std::string_view backend_name() { return TRIREME_GPU_BACKEND; }

int device_count() {
  set_environment();
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaSuccess && count > 0) return count;
  cudaGetLastError();
  switch (error) {
    case cudaErrorInsufficientDriver: {
      int driver = 0;
      cudaDriverGetVersion(&driver);
      if (driver == 0) {
        throw EnvironmentError(
            "this machine has no NVIDIA driver (no GPU can be used). Set run.device to \"cpu\", or "
            "install the driver");
      }
      throw EnvironmentError(
          "the NVIDIA driver serves CUDA {}.{}, this program was built with CUDA {}.{} (no GPU can "
          "be used). Install a newer driver, or build with an older toolkit",
          driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    }
    case cudaSuccess:
    case cudaErrorNoDevice:
      throw EnvironmentError(
          "no GPU is visible (CUDA_VISIBLE_DEVICES may hide them). Set run.device to \"cpu\", or "
          "start where a GPU is");
    default:
      throw EnvironmentError("the GPUs cannot be used: {} ({})", cudaGetErrorString(error),
                             cudaGetErrorName(error));
  }
}

Info info(int index) {
  set_environment();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "cudaGetDeviceProperties");
  std::array<char, 32> bus_id{};
  check(cudaDeviceGetPCIBusId(bus_id.data(), bus_id.size(), index), "cudaDeviceGetPCIBusId");
  return {properties.name, properties.major * 10 + properties.minor, properties.multiProcessorCount,
          properties.totalGlobalMem, bus_id.data()};
}

namespace {

/// TRIREME_GPU_ARCHITECTURES names what nvcc was asked for: "80 90a 80-ptx".
struct Architecture {
  int capability = 0;
  bool this_only = false, ptx = false;  ///< 90a runs on nothing else
};
std::vector<Architecture> built_for() {
  std::vector<Architecture> built;
  std::istringstream words(TRIREME_GPU_ARCHITECTURES);
  for (std::string word; words >> word;)
    built.push_back({std::stoi(word), word.ends_with('a'), word.ends_with("-ptx")});
  return built;
}

}  // namespace

Code code_for(int capability) {
  Code best = Code::kNone;
  for (const Architecture& each : built_for()) {
    const bool same_generation = each.capability / 10 == capability / 10;
    if (each.ptx && each.capability <= capability && best == Code::kNone) best = Code::kPtx;
    if (!each.ptx && same_generation && each.capability <= capability &&
        (!each.this_only || each.capability == capability))
      best = Code::kMachine;
  }
  return best;
}

std::string architectures() {
  std::string text;
  for (const Architecture& each : built_for()) {
    text += fmt::format("{}{}{}{}", text.empty() ? "" : ", ", each.ptx ? "PTX for " : "",
                        each.capability, each.this_only ? "a" : "");
  }
  return text;
}

void select(int index) { check(cudaSetDevice(index), "cudaSetDevice"); }

std::size_t free_bytes() { return memory_info().free; }
std::size_t used_bytes() {
  const MemoryInfo memory = memory_info();
  return memory.total - memory.free;
}

std::byte* allocate(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaMalloc(&memory, bytes);
  return checked_memory(error, memory, bytes, "GPU");
}
void release(std::byte* memory) noexcept { cudaFree(memory); }
std::byte* allocate_pinned(std::size_t bytes) {
  void* memory = nullptr;
  const cudaError_t error = cudaHostAlloc(&memory, bytes, cudaHostAllocDefault);
  return checked_memory(error, memory, bytes, "pinned host");
}
void release_pinned(std::byte* memory) noexcept { cudaFreeHost(memory); }

void copy(void* to, const void* from, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)), "cudaMemcpyAsync");
}
void copy_rows(const Rows& to, const Rows& from, std::size_t row_bytes, std::size_t rows,
               void* stream) {
  if (row_bytes == 0 || rows == 0) return;
  if (rows == 1) return copy(to.data, from.data, row_bytes, stream);
  check(cudaMemcpy2DAsync(to.data, to.stride, from.data, from.stride, row_bytes, rows,
                          cudaMemcpyDefault, stream_of(stream)),
        "cudaMemcpy2DAsync");
}
void clear(void* memory, std::size_t bytes, void* stream) {
  if (bytes == 0) return;
  check(cudaMemsetAsync(memory, 0, bytes, stream_of(stream)), "cudaMemsetAsync");
}

void* make_stream(Priority priority) {
  int least = 0, greatest = 0;
  check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
  cudaStream_t stream = nullptr;
  check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking,
                                     priority == Priority::kHigh ? greatest : least),
        "cudaStreamCreateWithPriority");
  return stream;
}
void destroy_stream(void* stream) noexcept { cudaStreamDestroy(stream_of(stream)); }
void synchronize(void* stream) {
  const cudaError_t error = cudaStreamSynchronize(stream_of(stream));
  if (error == cudaSuccess || is_defect(error)) return check(error, "cudaStreamSynchronize");
  throw DeviceError(
      "something that the GPU was asked for has failed: {} ({}). dmesg and nvidia-smi -q tell of a "
      "fault of the GPU; with CUDA_LAUNCH_BLOCKING=1 the op that failed is named, with its shape",
      cudaGetErrorString(error), cudaGetErrorName(error));
}

void* make_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreateWithFlags");
  return event;
}
void destroy_event(void* event) noexcept { cudaEventDestroy(event_of(event)); }
void record(void* event, void* stream) {
  check(cudaEventRecord(event_of(event), stream_of(stream)), "cudaEventRecord");
}
void wait(void* stream, void* event) {
  check(cudaStreamWaitEvent(stream_of(stream), event_of(event), 0), "cudaStreamWaitEvent");
}
void wait_here(void* event) {
  check(cudaEventSynchronize(event_of(event)), "cudaEventSynchronize");
}
bool finished(void* event) {
  const cudaError_t error = cudaEventQuery(event_of(event));
  if (error == cudaErrorNotReady) return false;
  check(error, "cudaEventQuery");
  return true;
}

void* make_timing_event() {
  cudaEvent_t event = nullptr;
  check(cudaEventCreate(&event), "cudaEventCreate");
  return event;
}
double elapsed_microseconds(void* begin, void* end) {
  wait_here(begin);
  wait_here(end);
  float milliseconds = 0;
  check(cudaEventElapsedTime(&milliseconds, event_of(begin), event_of(end)),
        "cudaEventElapsedTime");
  return 1e3 * static_cast<double>(milliseconds);
}

void begin_capture(void* stream) {
  check(cudaStreamBeginCapture(stream_of(stream), cudaStreamCaptureModeThreadLocal),
        "cudaStreamBeginCapture");
}
bool capturing(void* stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  check(cudaStreamIsCapturing(stream_of(stream), &status), "cudaStreamIsCapturing");
  return status != cudaStreamCaptureStatusNone;
}
void* end_capture(void* stream) {
  cudaGraph_t graph = nullptr;
  check(cudaStreamEndCapture(stream_of(stream), &graph), "cudaStreamEndCapture");
  cudaGraphExec_t executable = nullptr;
  const cudaError_t error = cudaGraphInstantiate(&executable, graph, 0);
  cudaGraphDestroy(graph);
  check(error, "cudaGraphInstantiate");
  return executable;
}
void abandon_capture(void* stream) noexcept {
  cudaGraph_t graph = nullptr;
  cudaStreamEndCapture(stream_of(stream), &graph);
  if (graph != nullptr) cudaGraphDestroy(graph);
  cudaGetLastError();
}
void replay(void* graph, void* stream) {
  check(cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), stream_of(stream)), "cudaGraphLaunch");
}
void destroy_graph(void* graph) noexcept {
  cudaGraphExecDestroy(static_cast<cudaGraphExec_t>(graph));
}

}  // namespace trireme::gpu
