#pragma once

#include <cstdint>
#include <string>

#include "device/context.h"
#include "kernels/common/gemm_epilogue.h"
#include "kernels/common/transpose.h"
#include "tensor/tensor_view.h"

namespace trireme {

enum class Accumulate : std::uint8_t { kNo, kYes };

/// f(context, first, count), which must outlive this; or nothing.
class RowsFunction {
 public:
  RowsFunction() = default;
  template <class F>
  RowsFunction(const F& f)  // NOLINT(google-explicit-constructor): a lambda in place of it
      : f_(&f), call_([](const void* of, Context& context, std::int64_t first, std::int64_t count) {
          (*static_cast<const F*>(of))(context, first, count);
        }) {}
  void operator()(Context& context, std::int64_t first, std::int64_t count) const {
    call_(f_, context, first, count);
  }
  [[nodiscard]] bool given() const { return call_ != nullptr; }

 private:
  const void* f_ = nullptr;
  void (*call_)(const void*, Context&, std::int64_t, std::int64_t) = nullptr;
};

/// C = op(A) op(B) (+ bias on each row) or C += op(A) op(B).
///
///   c     [M, N]  f32, or bf16 (then a, b are bf16 and nothing is accumulated)
///   a     [M, K], or [K, M] with transpose_a      f32|bf16
///   b     [K, N], or [N, K] with transpose_b      as a
///   bias  [N]     as b; not with accumulate
/// Sums in f32; a bf16 result is rounded once, after the bias. No operand aliases c. M, N or K may
/// be 0. Deterministic for a shape, threads and CPU; on a GPU also for alignment, model and kernel.
///
/// With an epilogue, y = op(A) op(B) (+ bias), rounded to the operands' type, goes on to
///   kAddResidual   c = y + operand                              operand [M, N]
///   kGelu          saved = y, c = gelu(y)                       saved [M, N], optional
///   kGeluBackward  c = y gelu'(operand), saved = gelu(operand)  operand, saved [M, N], optional
///   kSwiglu        saved = y [M, 2F], c = silu(y[:, :F]) y[:, F:]; then c is [M, F] and N is 2F
///   kSwigluBackward  c = swiglu's gradient for y at operand, saved = swiglu(operand); y and saved
///                  are [M, F], c and operand [M, 2F]
///   kGeglu, kGegluBackward   the same with gelu in place of silu
/// all of a's type, which is c's too; no two share memory; nothing is accumulated. The bits of the
/// product followed by that op, which also runs where no kernel does both.
///
/// Where the context is batch-invariant a row of c has the same bits alone and among any others:
/// each sum runs over K in one order, whatever M. Then `a` is not transposed, nothing accumulated.
///
/// `then` is called once for each part of c's rows, as soon as these are final. Where our own
/// product runs on a CPU, the thread that made the rows calls it with a context of its own while
/// its caches hold them; else it is called once for all rows. Its time is the product's.
struct Gemm {
  TensorView c_MN;
  ConstTensorView a, b;
  Transpose transpose_a = Transpose::kNo, transpose_b = Transpose::kNo;
  Accumulate accumulate = Accumulate::kNo;
  ConstTensorView bias_N = {};
  GemmEpilogue epilogue = GemmEpilogue::kNone;
  ConstTensorView operand = {};
  TensorView saved = {};
  RowsFunction then = {};
  const char* use = "gemm";  ///< a literal: what the product is called where times are shown
};
void gemm(Context& context, const Gemm& args);

/// A product without an epilogue by oneDNN on a CPU: what ours is measured by.
void gemm_by_library(Context& context, const Gemm& args);

/// A warning with the library that a GPU's products lack here, and what is slower; else "".
std::string gemm_missing_library();

/// The version of that library, 0 where it is missing.
std::int64_t gemm_gpu_library_version();

/// "2.6.3": of oneDNN.
std::string gemm_library_version();

}  // namespace trireme
