#pragma once
// Epilogues from a table's arguments.

#include "kernels/gemm/gemm_epilogue.cuh"
#include "kernels/gemm/gemm_gpu_table.h"

namespace trireme::cuda {

/// Columns of the result: half of the product's where the epilogue takes two.
inline std::int64_t result_columns(const GemmGpuArgs& args) {
  return args.epilogue == GemmEpilogue::kSwiglu ? args.n / 2 : args.n;
}

/// Whether our kernels have the epilogue for the operands' layouts. Fused: forward of either layout
/// of weights; any layout where no second pass is needed.
inline bool has_epilogue(const GemmGpuArgs& args) {
  switch (args.epilogue) {
    case GemmEpilogue::kNone:
    case GemmEpilogue::kAddResidual:
      return true;
    case GemmEpilogue::kGelu:
    case GemmEpilogue::kGeluBackward:
    case GemmEpilogue::kSwigluBackward:
      return !args.transpose_a;
    case GemmEpilogue::kSwiglu:
      return !args.transpose_a && args.transpose_b;
    case GemmEpilogue::kGeglu:
    case GemmEpilogue::kGegluBackward:
      return false;
  }
  return false;
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
  return {bias_of<T, C>(args), args.accumulate ? static_cast<const C*>(args.c) : nullptr,
          static_cast<const C*>(args.operand)};
}
template <class T>
GeluEpilogue<T> gelu_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args)};
}
template <class T>
GeluBackwardEpilogue<T> gelu_backward_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args), static_cast<const T*>(args.operand)};
}
template <class T>
SwigluEpilogue<T> swiglu_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args)};
}

template <class T>
SwigluBackwardEpilogue<T> swiglu_backward_epilogue(const GemmGpuArgs& args) {
  return {bias_of<T>(args), static_cast<const T*>(args.operand)};
}

template <class C>
Outputs<C> outputs_of(const GemmGpuArgs& args) {
  const std::int64_t columns = result_columns(args);
  auto *c = static_cast<C*>(args.c), *saved = static_cast<C*>(args.saved);
  if (args.epilogue == GemmEpilogue::kSwiglu)
    return {{c, saved, saved + columns}, {columns, args.n, args.n}};
  if (args.epilogue == GemmEpilogue::kSwigluBackward)
    return {{c, saved, c + columns}, {2 * columns, columns, 2 * columns}};
  return {{c, saved, nullptr}, {columns, columns, columns}};
}
template <class E>
DirectSink<typename E::Out> direct_sink(const GemmGpuArgs& args, const E& epilogue) {
  return {outputs_of<typename E::Out>(args), epilogue.bias.columns, epilogue.bias.pairs};
}

}  // namespace trireme::cuda
