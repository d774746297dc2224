#include "kernels/gelu/gelu.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/gelu/gelu_table.h"

namespace trireme {
namespace {

const GeluKernels& table(const Context& context) {
  return choose_table("gelu", context, gelu_cpu, &GpuKernels::gelu);
}

}  // namespace

void gelu_forward(Context& context, TensorView act, ConstTensorView x) {
  const OpSpan span(context.op_trace(), "gelu_forward", {0, bytes_of(act, x)});
  const ArgumentChecker check("gelu_forward");
  check.floating("x", x.dtype);
  check.tensor("x", x, x.dtype, x.shape);
  check.tensor("act", act, x.dtype, x.shape);
  check.same_or_disjoint("act", act, "x", x);
  table(context).forward({context.exec(), act.data, x.data, x.count(), x.dtype});
}

void gelu_backward(Context& context, TensorView dx, ConstTensorView dact, ConstTensorView x,
                   TensorView act) {
  const OpSpan span(context.op_trace(), "gelu_backward", {0, bytes_of(dx, dact, x, act)});
  const ArgumentChecker check("gelu_backward");
  check.floating("x", x.dtype);
  check.tensor("x", x, x.dtype, x.shape);
  check.tensor("dact", dact, x.dtype, x.shape);
  check.tensor("dx", dx, x.dtype, x.shape);
  check.same_or_disjoint("dx", dx, "dact", dact);
  check.same_or_disjoint("dx", dx, "x", x);
  check.optional("act", act, x.dtype, x.shape);
  check.same_or_disjoint("act", act, "dact", dact);
  check.disjoint("act", act, "dx", dx);
  check.disjoint("act", act, "x", x);
  table(context).backward(
      {context.exec(), dx.data, act.data, dact.data, x.data, x.count(), x.dtype});
}

}  // namespace trireme
