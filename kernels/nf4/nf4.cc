#include "kernels/nf4/nf4.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/nf4/nf4_table.h"

namespace trireme {
namespace {

const Nf4Kernels& table_of(const Context& context) {
  return choose_table("nf4", context, nf4_cpu, &GpuKernels::nf4);
}

void check_operands(const char* op, const ConstNf4View& view, const ConstTensorView& x) {
  const ArgumentChecker check(op);
  check.tensor("codes", view.codes, DType::kU8, nf4_codes_shape(view.shape));
  check.tensor("absmax", view.absmax, DType::kF32, nf4_absmax_shape(view.shape));
  check.tensor("x", x, x.dtype, view.shape);
  check.disjoint("x", x, "codes", view.codes);
  check.disjoint("x", x, "absmax", view.absmax);
}

}  // namespace

void nf4_quantize(Context& context, const Nf4View& out, ConstTensorView x) {
  const OpSpan span(context.op_trace(), "nf4_quantize", {0, bytes_of(out.codes, out.absmax, x)});
  check_operands("nf4_quantize", out, x);
  const ArgumentChecker check("nf4_quantize");
  check.tensor("x", x, DType::kF32, out.shape);
  check.disjoint("codes", out.codes, "absmax", out.absmax);
  if (x.count() == 0) return;
  table_of(context).quantize({context.exec(), reinterpret_cast<std::uint8_t*>(out.codes.data),
                              out.absmax.as<float>(), x.as<float>(), x.count()});
}

void nf4_dequantize(Context& context, TensorView x, const ConstNf4View& from) {
  const OpSpan span(context.op_trace(), "nf4_dequantize",
                    {0, bytes_of(x, from.codes, from.absmax)});
  check_operands("nf4_dequantize", from, x);
  ArgumentChecker("nf4_dequantize").floating("x", x.dtype);
  if (x.count() == 0) return;
  table_of(context).dequantize({context.exec(), x.data,
                                reinterpret_cast<const std::uint8_t*>(from.codes.data),
                                from.absmax.as<float>(), x.count(), x.dtype});
}

}  // namespace trireme
