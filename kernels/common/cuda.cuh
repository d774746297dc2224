#pragma once
// The one header that gives a kernel its language: under nvcc CUDA's own, under any other compiler
// its execution on the host (kernels/simt_host), so that the same source runs where no GPU is.
//
// Rules that make both work: no asm outside ptx.cuh; every launch through launch(); dynamic shared
// memory by smem<T>(); every exchange inside a warp by a *_sync call or __syncwarp; vector accesses
// by vector.cuh; no std:: template inside a kernel.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/launch.h"

#ifdef __CUDACC__
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_runtime.h>
#define TRIREME_DEVICE 1
#else
#include "kernels/simt_host/simt.h"
#define TRIREME_DEVICE 0
#endif

namespace trireme::cuda {

using bf16 = __nv_bfloat16;

// A block's shared memory is one struct, placed at the start of dynamic shared memory: launch()
// gets sizeof(T). smem_tail: an array of run-time length behind that struct.
#if TRIREME_DEVICE
extern __shared__ __align__(1024) unsigned char dynamic_smem_bytes[];
template <class T>
__device__ __forceinline__ T& smem() {
  return *reinterpret_cast<T*>(dynamic_smem_bytes);
}
template <class Head, class T>
__device__ __forceinline__ T* smem_tail() {
  static_assert(sizeof(Head) % alignof(T) == 0);
  return reinterpret_cast<T*>(dynamic_smem_bytes + sizeof(Head));
}
#else
template <class T>
T& smem(simt::Loc loc = simt::Loc::current()) {
  static_assert(std::is_trivially_default_constructible_v<T> && alignof(T) <= 1024);
  return *reinterpret_cast<T*>(simt::dynamic_smem(sizeof(T), loc));
}
template <class Head, class T>
T* smem_tail(simt::Loc loc = simt::Loc::current()) {
  static_assert(sizeof(Head) % alignof(T) == 0);
  return reinterpret_cast<T*>(simt::dynamic_smem(sizeof(Head), loc) + sizeof(Head));
}
#endif

struct LaunchConfig {
  dim3 grid;
  dim3 block;
  std::size_t smem_bytes = 0;
  cudaStream_t stream = nullptr;
  const char* name = "";  ///< of the op, for errors
  int cluster = 1;        ///< neighbours along x that run together (Hopper)
};

inline cudaStream_t stream_of(const Exec& exec) { return static_cast<cudaStream_t>(exec.stream); }

/// The only way a kernel is launched. Asynchronous; what refuses the launch itself throws
/// EnvironmentError with op, shape and CUDA's word for it.
template <class... P, class... A>
void launch(void (*kernel)(P...), const LaunchConfig& config, A&&... args) {
#if TRIREME_DEVICE
  cudaError_t error = cudaSuccess;
  if (config.smem_bytes > std::size_t{48} << 10) {
    error = cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                                 cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 static_cast<int>(config.smem_bytes));
  }
  if (error == cudaSuccess && config.cluster > 1) {
    cudaLaunchAttribute attribute{};
    attribute.id = cudaLaunchAttributeClusterDimension;
    attribute.val.clusterDim = {static_cast<unsigned>(config.cluster), 1, 1};
    cudaLaunchConfig_t launch_config{};
    launch_config.gridDim = config.grid;
    launch_config.blockDim = config.block;
    launch_config.dynamicSmemBytes = config.smem_bytes;
    launch_config.stream = config.stream;
    launch_config.attrs = &attribute;
    launch_config.numAttrs = 1;
    error = cudaLaunchKernelEx(&launch_config, kernel, static_cast<P>(args)...);
  } else if (error == cudaSuccess) {
    kernel<<<config.grid, config.block, config.smem_bytes, config.stream>>>(
        static_cast<P>(args)...);
    error = cudaGetLastError();
  }
  if (error != cudaSuccess) {
    fail_launch({config.name,
                 {config.grid.x, config.grid.y, config.grid.z},
                 config.block.x * config.block.y * config.block.z,
                 config.smem_bytes,
                 cudaGetErrorString(error),
                 cudaGetErrorName(error)});
  }
#else
  simt::enqueue(config.stream, [=] {
    simt::launch(kernel,
                 simt::LaunchShape{config.grid, config.block, config.smem_bytes, config.name,
                                   config.cluster},
                 args...);
  });
#endif
}

/// For the runtime's own asynchronous calls: throws DeviceError where one was refused.
inline void check_call(const char* name, cudaError_t error) {
  if (error != cudaSuccess) fail_call(name, cudaGetErrorString(error), cudaGetErrorName(error));
}

// ---- types ----

__device__ __forceinline__ float to_float(float value) { return value; }
__device__ __forceinline__ float to_float(bf16 value) { return __bfloat162float(value); }

template <class T>
__device__ __forceinline__ T from_float(float value);
template <>
__device__ __forceinline__ float from_float<float>(float value) {
  return value;
}
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float value) {
  return __float2bfloat16(value);
}

/// f(T()) with T the element type; f32 or bf16, as the op's checks have made sure.
template <class F>
void for_type(DType dtype, F&& f) {
  if (dtype == DType::kF32) {
    f(float());
  } else {
    f(bf16());
  }
}

template <class... P>
bool aligned_to_16(const P*... pointers) {
  return ((reinterpret_cast<std::uintptr_t>(pointers) % 16 == 0) && ...);
}

constexpr std::int64_t blocks_for(std::int64_t items, std::int64_t per_block) {
  return (items + per_block - 1) / per_block;
}

}  // namespace trireme::cuda
