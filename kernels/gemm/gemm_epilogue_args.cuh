#pragma once
// Epilogues from a table's arguments.

#include "kernels/gemm/gemm_epilogue.cuh"
#include "kernels/gemm/gemm_gpu_table.h"

namespace trireme::cuda {

/// Columns of the result: half of the product's where the epilogue takes two.
inline std::int64_t result_columns(const GemmGpuArgs& args) {
  return args.epilogue == GemmEpilogue::kSwiglu ? args.n / 2 : args.n;
}

/// C: the type of c and of what is saved; an operand of the epilogue has it too.
template <class T, class C = T>
BiasRow<T> bias_of(const GemmGpuArgs& args) {
  const bool pairs = result_columns(args) % 2 == 0 &&
                     aligned_to_pairs(sizeof(C), static_cast<const void*>(args.c), args.operand,
                                      static_cast<const void*>(args.saved)) &&
                     aligned_to_pairs(sizeof(T), args.bias);
  return {static_cast<const T*>(args.bias), result_columns(args), pairs};
}

template <class T, class C>
StoreEpilogue<T, C> store_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T, C>(args), static_cast<C*>(args.c), static_cast<const C*>(args.operand),
          args.accumulate};
}
template <class T>
GeluEpilogue<T> gelu_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args), static_cast<T*>(args.c), static_cast<T*>(args.saved)};
}
template <class T>
GeluBackwardEpilogue<T> gelu_backward_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args), static_cast<T*>(args.c), static_cast<T*>(args.saved),
          static_cast<const T*>(args.operand)};
}
template <class T>
SwigluEpilogue<T> swiglu_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args), static_cast<T*>(args.c), static_cast<T*>(args.saved)};
}

}  // namespace trireme::cuda
