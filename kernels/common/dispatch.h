#pragma once
// Chooses among the tables of an op by what the context runs on.

#include "base/error.h"
#include "device/context.h"
#include "kernels/common/gpu_kernels.h"

namespace trireme {

/// The GPU's table of an op that has one of its own kind.
template <class Table>
const Table& gpu_table(const char* op, const Table* GpuKernels::*member) {
  const Table* table = gpu_kernels().*member;
  expect(table != nullptr, "{} has no table for GPUs", op);
  return *table;
}

template <class Table>
const Table& choose_by_isa(const Context& context, const Table& avx2, const Table& avx512,
                           const Table& avx512_bf16) {
  switch (context.isa()) {
    case Isa::kAvx512Bf16:
      return avx512_bf16;
    case Isa::kAvx512:
      return avx512;
    case Isa::kAvx2:
      break;
  }
  return avx2;
}

template <class Table>
const Table& choose_table(const char* op, const Context& context, const Table& avx2,
                          const Table& avx512, const Table& avx512_bf16,
                          const Table* GpuKernels::*gpu) {
  if (context.on_gpu()) return gpu_table(op, gpu);
  return choose_by_isa(context, avx2, avx512, avx512_bf16);
}

}  // namespace trireme
