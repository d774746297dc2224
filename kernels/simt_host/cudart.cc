// The CUDA runtime functions the trainer uses, on the host. Declared by NVIDIA's header, defined
// here: nothing of CUDA is linked.
#include <cstdlib>
#include <deque>
#include <memory>
#include <random>

#include "kernels/simt_host/simt.h"

struct CUstream_st {
  std::deque<std::function<bool()>> queue;  // an operation returns false while it must wait
};
struct CUevent_st {
  uint64_t recorded = 0, done = 0;  // counts of cudaEventRecord enqueued, executed
};

namespace trireme::simt {
namespace {
struct State {
  Streams mode = Streams::kEager;
  std::mt19937_64 rng;
  CUstream_st null_stream;
  std::vector<CUstream_st*> all{&null_stream};
};
State& state() {
  static State s;
  return s;
}
CUstream_st& queue_of(cudaStream_t s) { return s ? *s : state().null_stream; }

bool step(CUstream_st& s) {
  if (s.queue.empty()) return false;
  try {
    if (!s.queue.front()()) return false;
  } catch (...) {
    s.queue.pop_front();  // a faulty launch must not run again
    throw;
  }
  s.queue.pop_front();
  return true;
}

struct Blocked {
  CUevent_st* event;
};

// Runs what finished() depends on.
void drive(CUstream_st* target, const std::function<bool()>& finished) {
  State& g = state();
  while (!finished()) {
    if (g.mode == Streams::kRandom && g.rng() % 2) {
      step(*g.all[g.rng() % g.all.size()]);
      continue;
    }
    if (target && step(*target)) continue;
    bool moved = false;
    for (auto* s : g.all) moved = moved || (s != target && step(*s));
    if (!moved)
      throw Fault(FaultKind::kDeadlock, "streams wait for events that nobody will record");
  }
}
}  // namespace

void set_streams(Streams m, uint64_t seed) { state().mode = m, state().rng.seed(seed); }

void enqueue(cudaStream_t stream, std::function<void()> f) {
  CUstream_st& s = queue_of(stream);
  s.queue.push_back([f = std::move(f)] {
    f();
    return true;
  });
  if (state().mode == Streams::kEager) drive(&s, [&] { return s.queue.empty(); });
}
}  // namespace trireme::simt

using namespace trireme::simt;

extern "C" {

cudaError_t cudaMalloc(void** p, size_t n) {
  static int count = 0;
  *p = device_alloc(n, ("cudaMalloc #" + std::to_string(++count)).c_str());
  return *p ? cudaSuccess : cudaErrorMemoryAllocation;
}
cudaError_t cudaFree(void* p) {
  device_free(p);
  return cudaSuccess;
}
// Host and device share one memory here.
cudaError_t cudaMallocManaged(void** p, size_t n, unsigned) { return cudaMalloc(p, n); }
cudaError_t cudaHostAlloc(void** p, size_t n, unsigned) {
  return *p = std::aligned_alloc(256, (n + 255) & ~size_t(255)), cudaSuccess;
}
cudaError_t cudaFreeHost(void* p) { return std::free(p), cudaSuccess; }

cudaError_t cudaMemcpyAsync(void* dst, const void* src, size_t n, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  const bool to_device = kind == cudaMemcpyDefault
                             ? is_device_memory(dst)
                             : kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  const bool from_device = kind == cudaMemcpyDefault
                               ? is_device_memory(src)
                               : kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  enqueue(stream, [=] {
    if (to_device) device_check_range(dst, n, "copy target");
    if (from_device) device_check_range(src, n, "copy source");
    std::memcpy(dst, src, n);
    if (to_device) device_mark_initialised(dst, n);
  });
  return cudaSuccess;
}
cudaError_t cudaMemcpy2DAsync(void* dst, size_t dst_pitch, const void* src, size_t src_pitch,
                              size_t width, size_t height, cudaMemcpyKind kind,
                              cudaStream_t stream) {
  for (size_t row = 0; row < height; ++row) {
    cudaMemcpyAsync(static_cast<char*>(dst) + row * dst_pitch,
                    static_cast<const char*>(src) + row * src_pitch, width, kind, stream);
  }
  return cudaSuccess;
}
cudaError_t cudaMemsetAsync(void* dst, int value, size_t n, cudaStream_t stream) {
  enqueue(stream, [=] {
    device_check_range(dst, n, "memset target");
    std::memset(dst, value, n);
    device_mark_initialised(dst, n);
  });
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  CUstream_st& s = queue_of(stream);
  drive(&s, [&] { return s.queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize() {
  for (auto* s : state().all) drive(s, [&] { return s->queue.empty(); });
  return cudaSuccess;
}
cudaError_t cudaMemcpy(void* dst, const void* src, size_t n, cudaMemcpyKind kind) {
  cudaMemcpyAsync(dst, src, n, kind, nullptr);
  return cudaStreamSynchronize(nullptr);
}
cudaError_t cudaMemset(void* dst, int value, size_t n) {
  return cudaMemsetAsync(dst, value, n, nullptr);
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* s, unsigned) {
  state().all.push_back(*s = new CUstream_st);
  return cudaSuccess;
}
cudaError_t cudaStreamDestroy(cudaStream_t s) {
  cudaStreamSynchronize(s);
  std::erase(state().all, s);
  delete s;
  return cudaSuccess;
}
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* e, unsigned) {
  return *e = new CUevent_st, cudaSuccess;
}
cudaError_t cudaEventDestroy(cudaEvent_t e) { return delete e, cudaSuccess; }
cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t stream) {
  uint64_t n = ++e->recorded;
  enqueue(stream, [=] { e->done = std::max(e->done, n); });
  return cudaSuccess;
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t e, unsigned) {
  uint64_t n = e->recorded;  // 0: never recorded, no wait
  queue_of(stream).queue.push_back([=] { return e->done >= n; });
  if (state().mode == Streams::kEager) cudaStreamSynchronize(stream);
  return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  uint64_t n = e->recorded;
  drive(nullptr, [=] { return e->done >= n; });
  return cudaSuccess;
}
cudaError_t cudaGetLastError() { return cudaSuccess; }
const char* cudaGetErrorString(cudaError_t) { return "host execution"; }
const char* cudaGetErrorName(cudaError_t) { return "host execution"; }
cudaError_t cudaDriverGetVersion(int* v) { return *v = CUDART_VERSION, cudaSuccess; }
cudaError_t cudaDeviceGetPCIBusId(char* text, int, int) { return *text = 0, cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int) {
  *p = {};
  std::strcpy(p->name, "host execution");
  p->major = 9;
  p->multiProcessorCount = 4;
  p->totalGlobalMem = size_t(8) << 30;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* n) { return *n = 1, cudaSuccess; }
cudaError_t cudaSetDevice(int) { return cudaSuccess; }
cudaError_t cudaGetDevice(int* d) { return *d = 0, cudaSuccess; }
cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  return *free = *total = size_t(8) << 30, cudaSuccess;
}

}  // extern "C"
