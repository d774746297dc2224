#pragma once
// Products of experts (grouped_gemm.h) of operands in fp8, as gemm_quantized.h says for one.

#include <cstdint>

#include "device/context.h"
#include "kernels/gemm/gemm.h"
#include "tensor/quantized_segments.h"

namespace trireme {

/// c[r] = a[r] b_g^T for the rows r of expert g, of the values that codes and scales stand for.
///   c  [most, N] bf16          a  [most, K] along       rows behind the last segment stay
///   b  [G, N, K]; both padded along K, with equal parts there; not both e5m2
///   begins  [G P + 1] i32; a has a segment for each of the G P
/// Sums as in QuantizedGemm, on a GPU always the precise ones, and a row has the same bits with any
/// other rows beside it. A GPU asks for codes that begin at multiples of 16 bytes.
struct QuantizedGroupedGemm {
  TensorView c_RN;
  ConstQuantizedSegments a;
  ConstQuantizedMatrices b;
  ConstTensorView begins;
  std::int64_t sources = 1;  ///< P
  bool precise_sums = true;  ///< as in QuantizedGemm
  const char* use = "grouped_gemm_fp8";
};
void grouped_gemm_quantized(Context& context, const QuantizedGroupedGemm& args);

/// c_g (+)= sum_p a_gp b_gp^T over the P segments of expert g, along their rows.
///   c  [G, M, N] f32        a  [most, M], b  [most, N] across; not both e5m2
/// Segments are summed as GroupedGemmWeights says.
struct QuantizedGroupedGemmWeights {
  TensorView c_GMN;
  ConstQuantizedSegments a, b;
  Accumulate accumulate = Accumulate::kNo;
  ConstTensorView begins;
  std::int64_t sources = 1;
  const char* use = "grouped_gemm_fp8";
};
void grouped_gemm_quantized_weights(Context& context, const QuantizedGroupedGemmWeights& args);

/// Whether both have kernels there: on a CPU, and on a GPU of Hopper's architecture. (cuBLASLt
/// would have to know on the host how many rows each expert has.)
bool grouped_gemm_quantized_serves(Device device);
/// Whether a GPU of a compute capability (90 of 9.0) can have them, whatever is built here.
bool grouped_gemm_quantized_serves(int capability);

}  // namespace trireme
