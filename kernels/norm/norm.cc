#include "kernels/norm/norm.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/norm/norm_table.h"
#include "kernels/quantize/quantize_internal.h"

namespace trireme {
namespace {

const NormKernels& table(const Context& context) {
  return choose_table("norm", context, norm_cpu, &GpuKernels::norm);
}

void check_forward(const NormForward& args) {
  const ArgumentChecker check("norm_forward");
  check.rank("x", args.x_TC, 2);
  const DType type = args.x_TC.dtype;
  const Shape shape = args.x_TC.shape, tokens{shape[0]}, channels{shape[1]};
  check.floating("x", type);
  check.tensor("x", args.x_TC, type, shape);
  const QuantizedView& codes = args.quantized.codes;
  if (!codes.given() || args.y_TC.given()) check.tensor("y", args.y_TC, type, shape);
  if (args.op == NormOp::kNone) {
    check.absent("weight", args.weight_C, "without a norm");
    check.absent("codes", codes.codes, "without a norm");
    check.absent("amax", args.quantized.amax_P, "without a norm");
  } else {
    check.tensor("weight", args.weight_C, type, channels);
    check.tensor("rstd", args.rstd_T, DType::kF32, tokens);
    quantize_internal::check_output("norm_forward", args.quantized, {type, shape[0], shape[1]});
  }
  if (args.op == NormOp::kLayer) {
    check.tensor("mean", args.mean_T, DType::kF32, tokens);
    check.optional("bias", args.bias_C, type, channels);
  } else {
    check.absent("bias", args.bias_C, "without a layer norm");
  }
  if (args.residual_TC.given()) {
    check.tensor("residual", args.residual_TC, type, shape);
    check.tensor("sum", args.sum_TC, type, shape);
  } else {
    check.absent("sum", args.sum_TC, "without residual");
  }
  for (const auto& [name, made] : {std::pair<const char*, ConstTensorView>{"y", args.y_TC},
                                   {"codes", codes.codes},
                                   {"scales", codes.scales}}) {
    check.disjoint(name, made, "x", args.x_TC);
    check.disjoint(name, made, "residual", args.residual_TC);
    check.disjoint(name, made, "sum", args.sum_TC);
  }
  check.same_or_disjoint("sum", args.sum_TC, "x", args.x_TC);
  check.same_or_disjoint("sum", args.sum_TC, "residual", args.residual_TC);
}

void check_backward(const NormBackward& args) {
  const ArgumentChecker check("norm_backward");
  check.rank("dy", args.dy_TC, 2);
  const DType type = args.dy_TC.dtype;
  const Shape shape = args.dy_TC.shape, tokens{shape[0]}, channels{shape[1]};
  check.floating("dy", type);
  check.tensor("dy", args.dy_TC, type, shape);
  check.tensor("dx", args.dx_TC, type, shape);
  check.tensor("s", args.s_TC, type, shape);
  check.optional("dresidual", args.dresidual_TC, type, shape);
  if (args.op == NormOp::kNone) {
    check.absent("weight", args.weight_C, "without a norm");
    check.absent("dweight", args.dweight_C, "without a norm");
    check.absent("amax", args.amax_1, "without a norm");
  } else {
    check.tensor("weight", args.weight_C, type, channels);
    check.tensor("rstd", args.rstd_T, DType::kF32, tokens);
    check.optional("dweight", args.dweight_C, DType::kF32, channels);
  }
  if (args.op == NormOp::kLayer) {
    check.tensor("mean", args.mean_T, DType::kF32, tokens);
    check.optional("dbias", args.dbias_C, DType::kF32, channels);
    check.optional("bias", args.bias_C, type, channels);
  } else {
    check.absent("dbias", args.dbias_C, "without a layer norm");
    check.absent("bias", args.bias_C, "without a layer norm");
  }
  check.optional("y", args.y_TC, type, shape);
  check.optional("amax", args.amax_1, DType::kI32, {1});
  check.same_or_disjoint("y", args.y_TC, "dy", args.dy_TC);
  check.disjoint("y", args.y_TC, "dx", args.dx_TC);
  check.disjoint("y", args.y_TC, "dresidual", args.dresidual_TC);
  check.disjoint("y", args.y_TC, "s", args.s_TC);
  check.same_or_disjoint("dx", args.dx_TC, "dy", args.dy_TC);
  check.same_or_disjoint("dx", args.dx_TC, "dresidual", args.dresidual_TC);
  check.disjoint("dx", args.dx_TC, "s", args.s_TC);
}

}  // namespace

void norm_forward(Context& context, const NormForward& args) {
  const OpSpan span(context.op_trace(), "norm_forward",
                    {0, bytes_of(args.y_TC, args.sum_TC, args.x_TC, args.residual_TC,
                                 args.quantized.codes.codes, args.quantized.codes.scales)});
  check_forward(args);
  const std::int64_t tokens = args.x_TC.shape[0], channels = args.x_TC.shape[1];
  if (tokens == 0 || channels == 0) return;
  const bool layer = args.op == NormOp::kLayer, none = args.op == NormOp::kNone;
  const NormForwardArgs call{context.exec(),
                             args.y_TC.data,
                             args.sum_TC.data,
                             layer ? args.mean_T.as<float>() : nullptr,
                             none ? nullptr : args.rstd_T.as<float>(),
                             args.x_TC.data,
                             args.residual_TC.data,
                             args.weight_C.data,
                             args.bias_C.data,
                             tokens,
                             channels,
                             args.eps,
                             args.weight_offset,
                             args.x_TC.dtype,
                             quantize_internal::row_codes(args.quantized)};
  const NormKernels& kernels = table(context);
  (layer ? kernels.layer_forward : none ? kernels.none_forward : kernels.rms_forward)(call);
}

void norm_backward(Context& context, const NormBackward& args) {
  const OpSpan span(context.op_trace(), "norm_backward",
                    {0, bytes_of(args.dx_TC, args.y_TC, args.dy_TC, args.dresidual_TC, args.s_TC)});
  check_backward(args);
  const std::int64_t tokens = args.dy_TC.shape[0], channels = args.dy_TC.shape[1];
  if (tokens == 0 || channels == 0) return;
  const bool layer = args.op == NormOp::kLayer, none = args.op == NormOp::kNone;
  const NormKernels& kernels = table(context);
  NormBackwardArgs call{context.exec(),
                        args.dx_TC.data,
                        args.y_TC.data,
                        args.dweight_C.as<float>(),
                        args.dbias_C.as<float>(),
                        args.dy_TC.data,
                        args.dresidual_TC.data,
                        args.s_TC.data,
                        args.weight_C.data,
                        args.bias_C.data,
                        layer ? args.mean_T.as<float>() : nullptr,
                        none ? nullptr : args.rstd_T.as<float>(),
                        nullptr,
                        tokens,
                        channels,
                        args.weight_offset,
                        args.dy_TC.dtype,
                        context.multiprocessors(),
                        reinterpret_cast<std::int32_t*>(args.amax_1.data)};
  if (none) return kernels.none_backward(call);
  const auto floats = static_cast<std::size_t>(kernels.backward_scratch_floats(call));
  call.partial_sums = reinterpret_cast<float*>(context.scratch(floats * sizeof(float)));
  (layer ? kernels.layer_backward : kernels.rms_backward)(call);
}

}  // namespace trireme
