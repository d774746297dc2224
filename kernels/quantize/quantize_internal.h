#pragma once
// For who reads codes on a CPU, kernels/gemm/gemm_quantized.cc, and for ops that leave them.

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

}  // namespace trireme::quantize_internal
