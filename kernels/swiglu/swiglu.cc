#include "kernels/swiglu/swiglu.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/swiglu/swiglu_table.h"

namespace trireme {
namespace {

const SwigluKernels& table(const Context& context) {
  return choose_table("swiglu", context, swiglu_cpu, &GpuKernels::swiglu);
}

}  // namespace

void swiglu_forward(Context& context, TensorView act_TF, ConstTensorView gate_up_T2F) {
  const OpSpan span(context.op_trace(), "swiglu_forward", {0, bytes_of(act_TF, gate_up_T2F)});
  const ArgumentChecker check("swiglu_forward");
  check.rank("act", act_TF, 2);
  const std::int64_t tokens = act_TF.shape[0], ffn = act_TF.shape[1];
  check.floating("act", act_TF.dtype);
  check.tensor("act", act_TF, act_TF.dtype, act_TF.shape);
  check.tensor("gate_up", gate_up_T2F, act_TF.dtype, {tokens, 2 * ffn});
  check.disjoint("act", act_TF, "gate_up", gate_up_T2F);
  table(context).forward(
      {context.exec(), act_TF.data, gate_up_T2F.data, tokens, ffn, act_TF.dtype});
}

void swiglu_backward(Context& context, TensorView dgate_up_T2F, ConstTensorView dact_TF,
                     ConstTensorView gate_up_T2F, TensorView act_TF) {
  const OpSpan span(context.op_trace(), "swiglu_backward",
                    {0, bytes_of(dgate_up_T2F, dact_TF, gate_up_T2F, act_TF)});
  const ArgumentChecker check("swiglu_backward");
  check.rank("dact", dact_TF, 2);
  const std::int64_t tokens = dact_TF.shape[0], ffn = dact_TF.shape[1];
  check.floating("dact", dact_TF.dtype);
  check.tensor("dact", dact_TF, dact_TF.dtype, dact_TF.shape);
  check.tensor("gate_up", gate_up_T2F, dact_TF.dtype, {tokens, 2 * ffn});
  check.tensor("dgate_up", dgate_up_T2F, dact_TF.dtype, {tokens, 2 * ffn});
  check.disjoint("dgate_up", dgate_up_T2F, "dact", dact_TF);
  check.optional("act", act_TF, dact_TF.dtype, {tokens, ffn});
  check.same_or_disjoint("dgate_up", dgate_up_T2F, "gate_up", gate_up_T2F);
  check.same_or_disjoint("act", act_TF, "dact", dact_TF);
  check.disjoint("act", act_TF, "dgate_up", dgate_up_T2F);
  check.disjoint("act", act_TF, "gate_up", gate_up_T2F);
  table(context).backward({context.exec(), dgate_up_T2F.data, act_TF.data, dact_TF.data,
                           gate_up_T2F.data, tokens, ffn, dact_TF.dtype});
}

}  // namespace trireme
