#include "kernels/activation_codes/activation_codes.h"

#include <algorithm>
#include <array>

#include "kernels/activation_codes/activation_codes_table.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme {
namespace {

const ActivationCodesKernels& table(const Context& context) {
  return choose_table("activation_codes", context, activation_codes_cpu,
                      &GpuKernels::activation_codes);
}

/// Whether its parts are `size` columns each, from the beginning of a block.
bool is_whole(const ScaleDim& dim, std::int64_t size) {
  const auto parts = dim.given_parts();
  return std::all_of(parts.begin(), parts.end(), [&](const ScaleDim::Part& part) {
    return part.size == size && ScaleDim::phase(part, ScaleDim::kAlignment) == 0;
  });
}

}  // namespace

void activation_forward_codes(Context& context, ActivationKind kind, const QuantizedView& act_TF,
                              ConstTensorView x_TX) {
  const char* name = forward_codes_name(kind);
  const OpSpan span(context.op_trace(), name, {0, bytes_of(act_TF.codes, act_TF.scales, x_TX)});
  const ArgumentChecker check(name);
  check.rank("x", x_TX, 2);
  const std::int64_t tokens = x_TX.shape[0], ffn = x_TX.shape[1] / parts_of(kind);
  check.tensor("x", x_TX, DType::kBF16, {tokens, parts_of(kind) * ffn});
  quantize_internal::check_output(name, {act_TF}, {DType::kBF16, tokens, ffn});
  check.disjoint("codes", act_TF.codes, "x", x_TX);
  check.disjoint("scales", act_TF.scales, "x", x_TX);
  table(context).forward(
      {context.exec(), kind, quantize_internal::row_codes({act_TF}), x_TX.data, tokens, ffn});
}

void activation_backward_codes(Context& context, ActivationKind kind, const ActivationGradient& out,
                               ConstTensorView dact_TF, ConstTensorView x_TX) {
  using quantize_internal::MadeCodes;
  const char* name = backward_codes_name(kind);
  const std::array<MadeCodes, 3> made = {MadeCodes{"dx", out.dx, Transpose::kNo},
                                         MadeCodes{"dx_turned", out.dx_turned, Transpose::kYes},
                                         MadeCodes{"act_turned", out.act_turned, Transpose::kYes}};
  std::int64_t bytes = bytes_of(dact_TF, x_TX, out.rows_TX);
  for (const MadeCodes& of : made) bytes += bytes_of(of.out.codes, of.out.scales);
  const OpSpan span(context.op_trace(), name, {0, bytes});
  const ArgumentChecker check(name);
  check.rank("dact", dact_TF, 2);
  const std::int64_t tokens = dact_TF.shape[0], ffn = dact_TF.shape[1];
  const std::int64_t columns = parts_of(kind) * ffn;
  check.tensor("dact", dact_TF, DType::kBF16, {tokens, ffn});
  check.tensor("x", x_TX, DType::kBF16, {tokens, columns});
  check.optional("rows", out.rows_TX, DType::kBF16, {tokens, columns});
  check.same_or_disjoint("rows", out.rows_TX, "x", x_TX);
  check.disjoint("rows", out.rows_TX, "dact", dact_TF);
  check.that(ffn % 8 == 0, "dact", "columns are no multiple of 8");
  check.that(out.act_turned.format() == DType::kF8E4M3, "act_turned", "expected e4m3");
  check.that(out.dx_turned.format() == out.dx.format(), "dx_turned", "has another type than dx");
  for (const MadeCodes& of : made) {
    const bool across = of.transpose == Transpose::kYes;
    quantize_internal::check_made(name, of, tokens, of.name == made[2].name ? ffn : columns);
    check.that(is_whole(across ? of.out.columns : of.out.rows, tokens) &&
                   is_whole(across ? of.out.rows : of.out.columns, ffn),
               of.name, "expected parts of F from the beginning of a block");
    for (const ConstTensorView& one :
         {ConstTensorView(of.out.codes), ConstTensorView(of.out.scales)}) {
      check.disjoint(of.name, one, "dact", dact_TF);
      check.disjoint(of.name, one, "x", x_TX);
      check.disjoint(of.name, one, "rows", out.rows_TX);
    }
  }
  if (tokens == 0) return;
  const auto args = quantize_internal::args_of_made(context, DType::kBF16, made);
  table(context).backward(
      {kind, dact_TF.data, x_TX.data, out.rows_TX.data, ffn, {args[0], args[1]}, args[2]});
}

}  // namespace trireme
