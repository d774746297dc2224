#pragma once
// Descriptors of global tensors for TMA. Kernels take them as `const __grid_constant__ TensorMap`.
#include <cuda.h>  // types only; the driver is not linked

#include "kernels/common/cuda.cuh"

namespace trireme::cuda {

using TensorMap = CUtensorMap;

// A tensor of bf16, of f32 or of bytes (codes of fp8), innermost dimension first; strides in
// elements, from dimension 1. Rows of a box are swizzled in themselves: its inner dimension is 128
// or 64 bytes, and shared memory aligned to 8 rows.
template <int kRank, class Element = __nv_bfloat16>
struct TiledTensor {
  const Element* base;
  uint64_t dims[kRank];
  uint64_t strides[kRank - 1];
  uint32_t box[kRank];
};

#if TRIREME_DEVICE
/// Of elements of that many bytes.
constexpr CUtensorMapDataType tensor_map_type(std::size_t bytes) {
  if (bytes == 1) return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  return bytes == 4 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
}

template <int kRank, class Element = __nv_bfloat16>
TensorMap encode_tiled(const TiledTensor<kRank, Element>& t) {
  using Encode =
      CUresult(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
               const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
               CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  static Encode* encode = [] {
    void* f = nullptr;
    cudaDriverEntryPointQueryResult found;
    if (cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault,
                                         &found) != cudaSuccess ||
        found != cudaDriverEntryPointSuccess) {
      fail_call("a tensor map", "the driver has no cuTensorMapEncodeTiled",
                "it is older than 12.0");
    }
    return reinterpret_cast<Encode*>(f);
  }();
  cuuint64_t dims[kRank], strides[kRank];
  cuuint32_t box[kRank], element_strides[kRank];
  for (int i = 0; i < kRank; ++i) {
    dims[i] = t.dims[i], box[i] = t.box[i], element_strides[i] = 1;
    if (i) strides[i - 1] = t.strides[i - 1] * sizeof(Element);
  }
  TensorMap map;
  const CUresult r = encode(
      &map, tensor_map_type(sizeof(Element)), kRank, const_cast<Element*>(t.base), dims, strides,
      box, element_strides, CU_TENSOR_MAP_INTERLEAVE_NONE,
      t.box[0] * sizeof(Element) == 128 ? CU_TENSOR_MAP_SWIZZLE_128B : CU_TENSOR_MAP_SWIZZLE_64B,
      CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (r != CUDA_SUCCESS) {
    fail_call("a tensor map", "cuTensorMapEncodeTiled refuses it",
              r == CUDA_ERROR_INVALID_VALUE ? "CUDA_ERROR_INVALID_VALUE" : "error of the driver");
  }
  return map;
}
#else
template <int kRank, class Element = __nv_bfloat16>
TensorMap encode_tiled(const TiledTensor<kRank, Element>& t) {
  TensorMap map;
  uint64_t strides[kRank];
  for (int i = 1; i < kRank; ++i) strides[i - 1] = t.strides[i - 1] * sizeof(Element);
  simt::encode_tensor_map(&map, sizeof(Element), kRank, t.base, t.dims, strides, t.box);
  return map;
}
#endif

/// encode_tiled, remembered by content: steps repeat their maps, and the driver takes longer over
/// one than a launch. No std:: container: this header is compiled together with kernels (cuda.cuh).
template <int kRank, class Element = __nv_bfloat16>
const TensorMap& tensor_map(const TiledTensor<kRank, Element>& t) {
  constexpr int kWords = 3 * kRank, kSlots = 4096;
  struct Slot {
    uint64_t key[kWords];
    TensorMap map;
  };
  struct Slots {
    Slot* at = new Slot[kSlots]();
    Slots() = default;
    Slots(const Slots&) = delete;
    Slots& operator=(const Slots&) = delete;
    ~Slots() { delete[] at; }
  };
  thread_local Slots slots;
  uint64_t key[kWords] = {reinterpret_cast<uint64_t>(t.base)};
  for (int i = 0; i < kRank; ++i) {
    key[1 + i] = t.dims[i];
    key[1 + kRank + i] = t.box[i];
    if (i > 0) key[2 * kRank + i] = t.strides[i - 1];
  }
  uint64_t hash = 0;
  for (const uint64_t word : key) hash = (hash ^ word ^ hash >> 29) * 0x9e3779b97f4a7c15;
  Slot& slot = slots.at[hash >> 52];
  bool known = true;
  for (int i = 0; i < kWords; ++i) known = known && slot.key[i] == key[i];
  if (!known) {
    slot.map = encode_tiled(t);
    for (int i = 0; i < kWords; ++i) slot.key[i] = key[i];
  }
  return slot.map;
}

}  // namespace trireme::cuda
