#include "kernels/glu/glu.h"

#include <algorithm>
#include <array>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/glu/glu_table.h"
#include "kernels/quantize/quantize_internal.h"

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

void glu_forward_codes(Context& context, GluGate gate, const QuantizedView& act_TF,
                       ConstTensorView gate_up_T2F) {
  const char* name = name_of(gate, "swiglu_forward_codes", "geglu_forward_codes");
  const OpSpan span(context.op_trace(), name,
                    {0, bytes_of(act_TF.codes, act_TF.scales, gate_up_T2F)});
  const ArgumentChecker check(name);
  check.rank("gate_up", gate_up_T2F, 2);
  const std::int64_t tokens = gate_up_T2F.shape[0], ffn = gate_up_T2F.shape[1] / 2;
  check.tensor("gate_up", gate_up_T2F, DType::kBF16, {tokens, 2 * ffn});
  quantize_internal::check_output(name, {act_TF}, {DType::kBF16, tokens, ffn});
  check.disjoint("codes", act_TF.codes, "gate_up", gate_up_T2F);
  check.disjoint("scales", act_TF.scales, "gate_up", gate_up_T2F);
  table(context).forward_codes({context.exec(), gate, quantize_internal::row_codes({act_TF}),
                                gate_up_T2F.data, tokens, ffn});
}

void glu_backward_codes(Context& context, GluGate gate, const GluGradientCodes& out,
                        ConstTensorView dact_TF, ConstTensorView gate_up_T2F) {
  using quantize_internal::MadeCodes;
  const char* name = name_of(gate, "swiglu_backward_codes", "geglu_backward_codes");
  const std::array<MadeCodes, 3> made = {
      MadeCodes{"dgate_up", out.dgate_up, Transpose::kNo},
      MadeCodes{"dgate_up_turned", out.dgate_up_turned, Transpose::kYes},
      MadeCodes{"act_turned", out.act_turned, Transpose::kYes}};
  std::int64_t bytes = bytes_of(dact_TF, gate_up_T2F);
  for (const MadeCodes& of : made) bytes += bytes_of(of.out.codes, of.out.scales);
  const OpSpan span(context.op_trace(), name, {0, bytes});
  const ArgumentChecker check(name);
  check.rank("dact", dact_TF, 2);
  const std::int64_t tokens = dact_TF.shape[0], ffn = dact_TF.shape[1];
  check.tensor("dact", dact_TF, DType::kBF16, {tokens, ffn});
  check.tensor("gate_up", gate_up_T2F, DType::kBF16, {tokens, 2 * ffn});
  check.that(ffn % 8 == 0, "dact", "columns are no multiple of 8");
  check.that(out.act_turned.format() == DType::kF8E4M3, "act_turned", "expected e4m3");
  check.that(out.dgate_up_turned.format() == out.dgate_up.format(), "dgate_up_turned",
             "has another type than dgate_up");
  const auto is_whole = [](const ScaleDim& dim, std::int64_t size) {
    const auto parts = dim.given_parts();
    return std::all_of(parts.begin(), parts.end(), [&](const ScaleDim::Part& part) {
      return part.size == size && ScaleDim::phase(part, ScaleDim::kAlignment) == 0;
    });
  };
  for (const MadeCodes& of : made) {
    const bool across = of.transpose == Transpose::kYes;
    quantize_internal::check_made(name, of, tokens, of.name == made[2].name ? ffn : 2 * ffn);
    check.that(is_whole(across ? of.out.columns : of.out.rows, tokens) &&
                   is_whole(across ? of.out.rows : of.out.columns, ffn),
               of.name, "expected parts of F from the beginning of a block");
    for (const ConstTensorView& one :
         {ConstTensorView(of.out.codes), ConstTensorView(of.out.scales)}) {
      check.disjoint(of.name, one, "dact", dact_TF);
      check.disjoint(of.name, one, "gate_up", gate_up_T2F);
    }
  }
  if (tokens == 0) return;
  const auto args = quantize_internal::args_of_made(context, DType::kBF16, made);
  table(context).backward_codes(
      {gate, dact_TF.data, gate_up_T2F.data, ffn, {args[0], args[1]}, args[2]});
}

}  // namespace trireme
