// Descriptors of global tensors for TMA. Kernels take them as `const __grid_constant__ TensorMap`.
#pragma once
#include <cuda.h>  // types only; the driver is not linked

#include <cstdio>
#include <cstdlib>

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

using TensorMap = CUtensorMap;

// A bf16 tensor of rank 2 or 3, innermost dimension first; strides in elements, from dimension 1; box of what one instruction
// moves. With swizzle_128 the inner box is 64 elements (128 bytes) and shared memory 1024-byte aligned.
template <int kRank>
struct TiledTensor {
  const __nv_bfloat16* base;
  uint64_t dims[kRank];
  uint64_t strides[kRank - 1];
  uint32_t box[kRank];
  bool swizzle_128 = true;
};

#if TRIREME_DEVICE
template <int kRank>
TensorMap encode_tiled(const TiledTensor<kRank>& t) {
  using Encode = CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*, const cuuint64_t*, const cuuint32_t*,
                          const cuuint32_t*, CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static Encode* encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      std::fprintf(stderr, "the driver has no cuTensorMapEncodeTiled\n");
      std::exit(70);
    }
    return reinterpret_cast<Encode*>(f);
  }();
  cuuint64_t dims[kRank], strides[kRank];
  cuuint32_t box[kRank], element_strides[kRank];
  for (int i = 0; i < kRank; ++i) {
    dims[i] = t.dims[i], box[i] = t.box[i], element_strides[i] = 1;
    if (i) strides[i - 1] = t.strides[i - 1] * sizeof(__nv_bfloat16);
  }
  TensorMap map;
  const CUresult r = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, kRank, const_cast<__nv_bfloat16*>(t.base), dims, strides, box,
                            element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
                            t.swizzle_128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_NONE,
                            CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) {
    std::fprintf(stderr, "cuTensorMapEncodeTiled: error %d\n", int(r));
    std::exit(70);
  }
  return map;
}
#else
template <int kRank>
TensorMap encode_tiled(const TiledTensor<kRank>& t) {
  TensorMap map;
  uint64_t strides[kRank];
  for (int i = 1; i < kRank; ++i) strides[i - 1] = t.strides[i - 1] * sizeof(__nv_bfloat16);
  simt::encode_tensor_map(&map, sizeof(__nv_bfloat16), kRank, t.base, t.dims, strides, t.box, t.swizzle_128);
  return map;
}
#endif

}  // namespace trireme::cuda
