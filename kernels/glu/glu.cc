#include "kernels/glu/glu.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/glu/glu_table.h"

namespace trireme {
namespace {

const GluKernels& table(const Context& context) {
  return choose_table("glu", context, glu_cpu, &GpuKernels::glu);
}

/// What a trace and a refusal call the op.
const char* name_of(GluGate gate, const char* silu, const char* gelu) {
  return gate == GluGate::kSilu ? silu : gelu;
}

}  // namespace

void glu_forward(Context& context, GluGate gate, TensorView act_TF, ConstTensorView gate_up_T2F) {
  const char* name = name_of(gate, "swiglu_forward", "geglu_forward");
  const OpSpan span(context.op_trace(), name, {0, bytes_of(act_TF, gate_up_T2F)});
  const ArgumentChecker check(name);
  check.rank("act", act_TF, 2);
  const std::int64_t tokens = act_TF.shape[0], ffn = act_TF.shape[1];
  check.floating("act", act_TF.dtype);
  check.tensor("act", act_TF, act_TF.dtype, act_TF.shape);
  check.tensor("gate_up", gate_up_T2F, act_TF.dtype, {tokens, 2 * ffn});
  check.disjoint("act", act_TF, "gate_up", gate_up_T2F);
  table(context).forward(
      {context.exec(), gate, act_TF.data, gate_up_T2F.data, tokens, ffn, act_TF.dtype});
}

void glu_backward(Context& context, GluGate gate, TensorView dgate_up_T2F, ConstTensorView dact_TF,
                  ConstTensorView gate_up_T2F, TensorView act_TF) {
  const char* name = name_of(gate, "swiglu_backward", "geglu_backward");
  const OpSpan span(context.op_trace(), name,
                    {0, bytes_of(dgate_up_T2F, dact_TF, gate_up_T2F, act_TF)});
  const ArgumentChecker check(name);
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
  table(context).backward({context.exec(), gate, dgate_up_T2F.data, act_TF.data, dact_TF.data,
                           gate_up_T2F.data, tokens, ffn, dact_TF.dtype});
}

}  // namespace trireme
