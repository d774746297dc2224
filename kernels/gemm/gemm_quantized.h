#pragma once

#include <cstdint>
#include <string>

#include "kernels/gemm/gemm.h"
#include "tensor/quantized_view.h"

namespace trireme {

/// C = A B^T (+ bias on each row) or C += A B^T, of the values that quantised operands stand for.
///
///   c     [M, N]  bf16, or f32 (where added to, always)
///   a, b  [M, K], [N, K]  padded along K, and with equal parts there; e4m3 or e5m2, not both e5m2
///   bias  [N] bf16; not with accumulate
/// The epilogue, its operand and what it saves are those of `Gemm` for bf16 operands; so is `then`,
/// which is called once for all rows. `amax` of c [M, N], of P parts of its columns (two of gate's
/// and up's gradients, else one), is that of QuantizedOutput (quantize.h), also where no kernel
/// leaves it: then a pass over c finds it. In a batch-invariant context, rows of a CPU's product
/// have the bits that they have alone; their scales are theirs alone in blocks of one row.
///
/// Sums are in f32. On a GPU a tensor core adds 32 products at a time into an accumulator of few
/// bits (13 of a fraction on an H100), which is brought to f32 after every 128 of K, where it is
/// multiplied by the scales; only `precise_sums` false, with one scale of each operand for all of
/// K, leaves all of K in it (what forward products may do, by Transformer Engine's choice). Which
/// kernel multiplies is the context's choice (kernel_choices.h): cuBLASLt too, which may round
/// otherwise, and which is alone where this program has no kernels for a GPU. On a CPU values are
/// multiplied in f32.
struct QuantizedGemm {
  TensorView c_MN;
  ConstQuantizedView a, b;
  Accumulate accumulate = Accumulate::kNo;
  bool precise_sums = true;
  ConstTensorView bias_N = {};
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  ConstTensorView operand = {};
  TensorView saved = {};
  TensorView amax_P = {};
  RowsFunction then = {};
  const char* use = "gemm_fp8";  ///< a literal: what the product is called where times are shown
};
void gemm_quantized(Context& context, const QuantizedGemm& args);

/// Why products of a recipe have no kernels there, as a clause; "" where they have. `block`: of the
/// scales, 128, or 0 for whole tensors. On a CPU and on a GPU of Hopper's architecture both have;
/// on one of Ada's or Blackwell's whole tensors, by cuBLASLt. Asks that library, of which the
/// thread's GPU must be selected.
std::string gemm_quantized_missing(Device device, std::int64_t block);
/// The same of every GPU of a compute capability (90 of 9.0), whatever is built and installed here.
std::string gemm_quantized_missing(int capability, std::int64_t block);
inline bool gemm_quantized_serves(Device device, std::int64_t block) {
  return gemm_quantized_missing(device, block).empty();
}

}  // namespace trireme
