#pragma once
// The product's tables for GPUs. There may be several that serve one product: our own for any GPU,
// the one for Hopper, the library's. gemm_gpu.cc chooses.

#include <cstddef>
#include <cstdint>

#include "base/dtype.h"
#include "device/exec.h"
#include "kernels/common/gemm_epilogue.h"

namespace trireme {

/// c = epilogue(op(a) op(b)); the operands as in gemm.h, each a dense matrix.
struct GemmGpuArgs {
  Exec exec;
  void* c;
  const void *a, *b;
  const void* bias;     ///< may be null
  const void* operand;  ///< of the epilogue, or null
  void* saved;          ///< likewise
  std::int64_t m, n, k;
  bool transpose_a, transpose_b, accumulate;
  DType type, c_type;
  GemmEpilogue epilogue;
  int multiprocessors;
  void* workspace;  ///< as many bytes as the table asks for, aligned to 256
};

struct GemmGpuKernels {
  /// Whether this table has a kernel for such a product: shape, types, layout, alignment.
  bool (*serves)(const GemmGpuArgs&);
  void (*multiply)(const GemmGpuArgs&);
  std::size_t workspace_bytes = 0;
  /// Why the table serves nothing here (no such library); null, as its result, where it may.
  const char* (*missing)() = nullptr;
  /// Of a library that was opened when the program ran: another one may round otherwise.
  std::int64_t (*version)() = nullptr;
};
namespace cuda {
extern const GemmGpuKernels gemm_cuda;  ///< ours, for any GPU
extern const GemmGpuKernels gemm_cublaslt;
extern const GemmGpuKernels gemm_sm90;  ///< ours, for Hopper; where code for sm_90a is compiled
}  // namespace cuda

}  // namespace trireme
