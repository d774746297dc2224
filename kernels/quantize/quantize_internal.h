#pragma once
// For who reads codes on a CPU, kernels/gemm/gemm_quantized.cc, and for ops that leave them.

#include <array>

#include "kernels/quantize/quantize.h"
#include "kernels/quantize/quantize_table.h"
#include "tensor/quantized_view.h"

namespace trireme::quantize_internal {

/// The dim as the loops read it; `padded`: its indices lie in the padded order in a row of codes.
QuantizedDim dim_of(const ScaleDim& dim, bool padded);

/// The shapes and types of a view's tensors, without its alignment; throws naming `name`.
void check_view(const char* op, const char* name, const ConstQuantizedView& view);

/// Of y, `y_type` [rows, columns], and of so many parts; throws naming "codes" or "amax".
struct OutputOf {
  DType y_type;
  std::int64_t rows, columns, parts = 1;
};
void check_output(const char* op, const QuantizedOutput& out, const OutputOf& of);
RowCodes row_codes(const QuantizedOutput& out);

/// For an op that makes values [R, C] and leaves no more of them than their codes: in blocks of
/// 1 x 128 of `out`, padded, which is of them or with `transpose` of them across.
struct MadeCodes {
  const char* name;
  QuantizedView out;
  Transpose transpose;
};
/// Throws naming the op and the codes.
void check_made(const char* op, const MadeCodes& of, std::int64_t rows, std::int64_t columns);
/// What the steps of quantize read of one, but for x, with memory for so many words.
std::size_t made_words(const Context& context, const MadeCodes& of);
QuantizeArgs args_of_made(const Context& context, DType type, const MadeCodes& of, float* words);
/// x's, on a CPU, of which an op has made a part.
void quantize_made(Context& context, const MadeCodes& of, ConstTensorView x, float* words);
/// Of each. The op finds the maxima.
template <std::size_t kCount>
std::array<QuantizeArgs, kCount> args_of_made(Context& context, DType type,
                                              const std::array<MadeCodes, kCount>& all) {
  std::size_t words = 0;
  for (const MadeCodes& of : all) words += made_words(context, of);
  auto* at =
      words == 0 ? nullptr : reinterpret_cast<float*>(context.scratch(words * sizeof(float)));
  std::array<QuantizeArgs, kCount> args;
  for (std::size_t i = 0; i < kCount; ++i) {
    args[i] = args_of_made(context, type, all[i], at);
    if (at != nullptr) at += made_words(context, all[i]);
  }
  return args;
}

}  // namespace trireme::quantize_internal
