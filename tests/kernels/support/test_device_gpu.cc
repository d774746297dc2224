// For the test executables of the GPU's tables, on a GPU or executed on the host.
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <string_view>

#include "device/gpu.h"
#include "kernels/support/op_test.h"

#ifdef TRIREME_SIMT_TESTS
#include "kernels/simt_host/simt.h"
#endif

namespace trireme {

std::vector<Isa> isas_to_test() { return {Isa::kAvx2}; }

namespace test_device {

Device device() { return {DeviceKind::kCuda, 0}; }

std::byte* allocate(std::size_t bytes) {
  void* memory = nullptr;
  expect(cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal) == cudaSuccess, "{} bytes", bytes);
  return static_cast<std::byte*>(memory);
}
void release(std::byte* memory) { cudaFree(memory); }
void initialise(std::byte* memory, std::size_t bytes) {
  if (bytes == 0) return;
  expect(cudaMemset(memory, 0, bytes) == cudaSuccess, "cudaMemset");
  synchronize();
}
void synchronize() {
  const cudaError_t error = cudaDeviceSynchronize();
  expect(error == cudaSuccess, "{}", cudaGetErrorString(error));
}

std::vector<std::string> in_every_order(const std::function<std::string()>& run) {
#ifdef TRIREME_SIMT_TESTS
  const simt::Options before = simt::options();
  std::vector<std::string> results;
  for (const simt::Order order : {simt::Order::kForward, simt::Order::kBackward,
                                  simt::Order::kRandom, simt::Order::kRandom}) {
    simt::options().order = order;
    simt::options().seed = results.size();
    results.push_back(run());
  }
  simt::options() = before;
  return results;
#else
  return {run(), run()};
#endif
}

#ifdef TRIREME_SIMT_TESTS
bool tensor_core_sums() { return simt::options().tensor_core_sums; }
TensorCoreSums::TensorCoreSums() : given(true) { simt::options().tensor_core_sums = true; }
TensorCoreSums::~TensorCoreSums() { simt::options().tensor_core_sums = false; }
#else
bool tensor_core_sums() {  // the interpreter of PTX is told by its environment
  const char* sums = std::getenv("TRIREME_PTX_SUMS");
  return gpu::backend_name() == "cuda" ||
         (sums != nullptr && std::string_view(sums) == "tensor-core");
}
TensorCoreSums::TensorCoreSums() : given(tensor_core_sums()) {}
TensorCoreSums::~TensorCoreSums() = default;
#endif

}  // namespace test_device
}  // namespace trireme
