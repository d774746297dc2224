// Device memory, copies and tensor maps.
#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdlib>
#include <map>

#include "kernels/ptx_host/cudart.h"
#include "kernels/ptx_host/modules.h"
#include "kernels/ptx_host/tma.h"

namespace {

using trireme::ptx::fail;
using trireme::ptx::perform;

constexpr std::size_t kDeviceBytes = std::size_t(80) << 30;
std::map<void*, std::size_t>& allocations() {
  static auto* all = new std::map<void*, std::size_t>;
  return *all;
}
std::size_t used_bytes = 0;

cudaError_t allocate(void** to, std::size_t bytes) {
  const std::size_t room = (bytes + 255) / 256 * 256;
  if (used_bytes + room > kDeviceBytes) return fail(cudaErrorMemoryAllocation);
  *to = std::aligned_alloc(256, room == 0 ? 256 : room);
  if (*to == nullptr) return fail(cudaErrorMemoryAllocation);
  std::memset(*to, 0xff, bytes);
  trireme::ptx::own_memory(*to, bytes);
  allocations()[*to] = bytes;
  used_bytes += room;
  return cudaSuccess;
}

}  // namespace

extern "C" {

CUresult cuTensorMapEncodeTiled(CUtensorMap* to, CUtensorMapDataType type, cuuint32_t rank,
                                void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* steps,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  constexpr std::uint8_t kRows[] = {16, 32, 64, 128};
  trireme::ptx::TensorMap map;
  const auto element = trireme::ptx::element_type(std::uint8_t(type));
  const auto base = reinterpret_cast<std::uint64_t>(address);
  bool good = rank >= 1 && rank <= 5 && element.bytes != 0 && base != 0 && base % 16 == 0 &&
              interleave == CU_TENSOR_MAP_INTERLEAVE_NONE && int(swizzle) < 4;
  for (cuuint32_t i = 0; good && i < rank; ++i) {
    good = dims[i] > 0 && dims[i] <= (std::uint64_t(1) << 32) && box[i] > 0 && box[i] <= 256 &&
           steps[i] == 1;
    if (i > 0) good = good && strides[i - 1] % 16 == 0 && strides[i - 1] < (std::uint64_t(1) << 40);
  }
  if (!good || box[0] * element.bytes % 16) return CUDA_ERROR_INVALID_VALUE;
  map.row_bytes = kRows[int(swizzle)];
  if (map.row_bytes > 16 && box[0] * element.bytes > map.row_bytes) return CUDA_ERROR_INVALID_VALUE;
  map.rank = std::uint8_t(rank);
  map.type = std::uint8_t(type);
  map.nan_fill = fill == CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  map.address = base;
  for (cuuint32_t i = 0; i < rank; ++i) {
    map.dims[i] = std::uint32_t(dims[i]), map.box[i] = box[i];
    if (i > 0) map.strides[i - 1] = strides[i - 1];
  }
  std::memset(to, 0, sizeof *to);
  std::memcpy(to, &map, sizeof map);
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const bool known = std::string_view(name) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(&cuTensorMapEncodeTiled) : nullptr;
  if (result) *result = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** to, std::size_t bytes) { return allocate(to, bytes); }
cudaError_t cudaMallocManaged(void** to, std::size_t bytes, unsigned) {
  return allocate(to, bytes);
}
cudaError_t cudaMallocAsync(void** to, std::size_t bytes, cudaStream_t) {
  return allocate(to, bytes);
}
cudaError_t cudaHostAlloc(void** to, std::size_t bytes, unsigned) { return allocate(to, bytes); }
cudaError_t cudaMallocHost(void** to, std::size_t bytes) { return allocate(to, bytes); }
cudaError_t cudaFree(void* memory) {
  if (memory == nullptr) return trireme::ptx::sticky_error();
  const auto found = allocations().find(memory);
  if (found == allocations().end()) return fail(cudaErrorInvalidValue);
  used_bytes -= (found->second + 255) / 256 * 256;
  allocations().erase(found);
  trireme::ptx::disown_memory(memory);
  std::free(memory);
  return cudaSuccess;
}
cudaError_t cudaFreeAsync(void* memory, cudaStream_t) { return cudaFree(memory); }
cudaError_t cudaFreeHost(void* memory) { return cudaFree(memory); }
cudaError_t cudaMemGetInfo(std::size_t* free_bytes, std::size_t* total) {
  *total = kDeviceBytes;
  *free_bytes = kDeviceBytes - used_bytes;
  return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind,
                            cudaStream_t stream) {
  return perform(stream, [=] { std::memmove(to, from, bytes); });
}
cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  return cudaMemcpyAsync(to, from, bytes, kind, nullptr);
}
cudaError_t cudaMemcpy2DAsync(void* to, std::size_t to_pitch, const void* from,
                              std::size_t from_pitch, std::size_t width, std::size_t height,
                              cudaMemcpyKind, cudaStream_t stream) {
  return perform(stream, [=] {
    for (std::size_t i = 0; i < height; ++i)
      std::memcpy(static_cast<char*>(to) + i * to_pitch,
                  static_cast<const char*>(from) + i * from_pitch, width);
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t stream) {
  return perform(stream, [=] { std::memset(to, value, bytes); });
}
cudaError_t cudaMemset2DAsync(void* to, std::size_t pitch, int value, std::size_t width,
                              std::size_t height, cudaStream_t stream) {
  return perform(stream, [=] {
    for (std::size_t i = 0; i < height; ++i)
      std::memset(static_cast<char*>(to) + i * pitch, value, width);
  });
}
cudaError_t cudaMemset(void* to, int value, std::size_t bytes) {
  return cudaMemsetAsync(to, value, bytes, nullptr);
}
cudaError_t cudaMemcpyToSymbol(const void* symbol, const void* from, std::size_t bytes,
                               std::size_t offset, cudaMemcpyKind) {
  void* to = trireme::ptx::address_of_variable(symbol);
  if (to == nullptr) return fail(cudaErrorInvalidSymbol);
  std::memcpy(static_cast<char*>(to) + offset, from, bytes);
  return cudaSuccess;
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  *attributes = {};
  attributes->type =
      trireme::ptx::owned(pointer, 1) ? cudaMemoryTypeDevice : cudaMemoryTypeUnregistered;
  attributes->devicePointer = const_cast<void*>(pointer);
  return cudaSuccess;
}

}  // extern "C"
