#pragma once
// Products of experts: each multiplies rows of its own with a weight of its own. How many rows, the
// table of expert_rows says, in the device's memory: no host waits for it.

#include <cstdint>

#include "device/context.h"
#include "kernels/common/transpose.h"
#include "kernels/gemm/gemm.h"
#include "tensor/tensor_view.h"

namespace trireme {

/// c[r] = a[r] op(b_g) for the rows r of expert g, begins[g P] <= r < begins[(g + 1) P].
///
///   c  [most, N] f32|bf16      a  [most, K] alike       rows behind the last segment stay
///   b  [G, K, N], or [G, N, K] with transpose_b; alike
///   begins  [G P + 1] i32
/// K > 0. Sums in f32, rounded once; each runs over K in one order: a row has the same bits with
/// any other rows, experts and segments beside it. Empty and huge segments are welcome. A CPU
/// refuses a table that leaves the rows; a GPU's is read by the kernels alone.
struct GroupedGemm {
  TensorView c_RN;
  ConstTensorView a_RK, b;
  Transpose transpose_b = Transpose::kNo;
  ConstTensorView begins;
  std::int64_t sources = 1;  ///< P
  const char* use = "grouped_gemm";
};
void grouped_gemm(Context& context, const GroupedGemm& args);

/// Gradients of such weights: c_g (+)= sum_p a_gp^T b_gp over the P segments of expert g.
///
///   c  [G, M, N] f32        a  [most, M], b  [most, N]  f32|bf16, alike
/// One product for each segment; where there are several their sums are added in f32 as a tree of
/// neighbours (sum_in_rank_order's: of n the first 2^i < n, then the rest; those of one segment are
/// a leaf), so that sources on other ranks, whose sums are added so by a reduction, give the same
/// bits. Empty segments add nothing; c of an expert without rows is 0 unless it accumulates.
struct GroupedGemmWeights {
  TensorView c_GMN;
  ConstTensorView a_RM, b_RN;
  Accumulate accumulate = Accumulate::kNo;
  ConstTensorView begins;
  std::int64_t sources = 1;
  const char* use = "grouped_gemm";
};
void grouped_gemm_weights(Context& context, const GroupedGemmWeights& args);

}  // namespace trireme
