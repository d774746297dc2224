// Kernels: what nvcc's host code calls.
#include <cuda_runtime_api.h>

#include <vector>

#include "kernels/ptx_host/cudart.h"
#include "kernels/ptx_host/modules.h"

namespace {

using trireme::ptx::Launch;

struct FatBinaryWrapper {
  int magic, version;
  const void* data;
  void* unused;
};
struct Configuration {
  dim3 grid, block;
  std::size_t shared;
  cudaStream_t stream;
};
std::vector<Configuration>& configurations() {
  static thread_local std::vector<Configuration> all;
  return all;
}

void put(std::uint32_t (&to)[3], dim3 from) { to[0] = from.x, to[1] = from.y, to[2] = from.z; }

// A captured launch runs later.
cudaError_t start(const void* stub, Launch launch, void** args, cudaStream_t stream) {
  if (!trireme::ptx::is_kernel(stub)) return trireme::ptx::fail(cudaErrorInvalidDeviceFunction);
  try {
    launch.params = trireme::ptx::pack_params(stub, args);
  } catch (const trireme::ptx::PtxError& error) {
    return trireme::ptx::perform(nullptr, [error] { throw error; });
  }
  return trireme::ptx::perform(stream, [stub, launch] { trireme::ptx::launch(stub, launch); });
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): as nvcc names them
extern "C" {

void** __cudaRegisterFatBinary(void* wrapper) {
  return static_cast<void**>(
      trireme::ptx::add_module(static_cast<FatBinaryWrapper*>(wrapper)->data));
}
void __cudaRegisterFatBinaryEnd(void**) {}
void __cudaUnregisterFatBinary(void**) {}
char __cudaInitModule(void**) { return 1; }
void __cudaRegisterFunction(void** module, const char* stub, char*, const char* name, int, uint3*,
                            uint3*, dim3*, dim3*, int*) {
  trireme::ptx::add_kernel(module, stub, name);
}
void __cudaRegisterVar(void** module, char* host, char*, const char* name, int, std::size_t, int,
                       int) {
  trireme::ptx::add_variable(module, host, name);
}
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, std::size_t shared,
                                     cudaStream_t stream) {
  configurations().push_back({grid, block, shared, stream});
  return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, std::size_t* shared, void* stream) {
  const Configuration c = configurations().back();
  configurations().pop_back();
  *grid = c.grid, *block = c.block, *shared = c.shared;
  *static_cast<cudaStream_t*>(stream) = c.stream;
  return cudaSuccess;
}

cudaError_t cudaLaunchKernel(const void* stub, dim3 grid, dim3 block, void** args,
                             std::size_t shared, cudaStream_t stream) {
  Launch launch;
  put(launch.grid, grid);
  put(launch.block, block);
  launch.dynamic_shared = shared;
  return start(stub, launch, args, stream);
}
// A kernel's handle is its stub.
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = static_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args,
                               std::size_t shared, cudaStream_t stream) {
  return cudaLaunchKernel(kernel, grid, block, args, shared, stream);
}
cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* config, const void* stub, void** args) {
  Launch launch;
  put(launch.grid, config->gridDim);
  put(launch.block, config->blockDim);
  launch.dynamic_shared = config->dynamicSmemBytes;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension)
      put(launch.cluster,
          {attribute.val.clusterDim.x, attribute.val.clusterDim.y, attribute.val.clusterDim.z});
  }
  return start(stub, launch, args, config->stream);
}
cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int,
                                                                   std::size_t, unsigned) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int,
                                                          std::size_t) {
  *blocks = 1;
  return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveClusters(int* clusters, const void*, const cudaLaunchConfig_t*) {
  *clusters = 1;
  return cudaSuccess;
}

}  // extern "C"
// NOLINTEND(readability-identifier-naming)
