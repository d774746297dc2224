#pragma once
// What the tables of cuBLASLt share: its products, whatever the type of their operands. Only files
// named *_cublaslt.cc include it.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/gpu_scratch.h"

namespace trireme::cuda::cublaslt {

constexpr std::size_t kWorkspaceBytes = gpu_scratch::kProductWorkspaceBytes;

/// c = scale_a scale_b op(a) op(b) (+ bias on each row), or c += that; op(a) [m, k], op(b) [k, n];
/// all dense.
struct Product {
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  const void *a, *b;
  void* c;
  const void* bias;  ///< of c's type, or null
  DType type_a, type_b, type_c;
  /// On the device, at multiples of 16 bytes, of fp8 operands; null: there is none.
  const float *scale_a = nullptr, *scale_b = nullptr;
  /// Of fp8 operands: sums of all of K stay in a tensor core's accumulator.
  bool fast_sums = false;
};

/// Whether the library is here and has a kernel for it: sizes, types, layout, alignment.
bool serves(const Product& product);
/// By that kernel.
void multiply(const Exec& exec, const Product& product, void* workspace);

/// As GemmGpuKernels has them.
const char* missing();
std::int64_t version();

}  // namespace trireme::cuda::cublaslt
