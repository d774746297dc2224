#include "kernels/magnitude/magnitude.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/magnitude/magnitude_table.h"

namespace trireme {
namespace {

const MagnitudeKernels& table(const Context& context) {
  return choose_table("magnitude", context, magnitude_cpu, &GpuKernels::magnitude);
}

}  // namespace

void magnitude_gains(Context& context, TensorView gain_N, TensorView inverse_N,
                     ConstTensorView magnitude_N, ConstTensorView squares_N) {
  const OpSpan span(context.op_trace(), "magnitude_gains",
                    {0, bytes_of(gain_N, inverse_N, magnitude_N, squares_N)});
  const ArgumentChecker check("magnitude_gains");
  check.rank("gain", gain_N, 1);
  check.tensor("gain", gain_N, DType::kF32, gain_N.shape);
  check.tensor("inverse", inverse_N, DType::kF32, gain_N.shape);
  if (magnitude_N.given()) check.floating("magnitude", magnitude_N.dtype);
  check.optional("magnitude", magnitude_N, magnitude_N.dtype, gain_N.shape);
  check.tensor("squares", squares_N, DType::kF32, gain_N.shape);
  check.disjoint("gain", gain_N, "inverse", inverse_N);
  check.disjoint("gain", gain_N, "magnitude", magnitude_N);
  check.disjoint("gain", gain_N, "squares", squares_N);
  check.disjoint("inverse", inverse_N, "magnitude", magnitude_N);
  check.disjoint("inverse", inverse_N, "squares", squares_N);
  if (gain_N.count() == 0) return;
  table(context).gains({context.exec(), gain_N.as<float>(), inverse_N.as<float>(), magnitude_N.data,
                        squares_N.as<float>(), gain_N.count(), magnitude_N.dtype});
}

void magnitude_gradient(Context& context, TensorView dmagnitude_N, ConstTensorView dgain_N,
                        ConstTensorView inverse_N) {
  const OpSpan span(context.op_trace(), "magnitude_gradient",
                    {0, bytes_of(dmagnitude_N, dmagnitude_N, dgain_N, inverse_N)});
  const ArgumentChecker check("magnitude_gradient");
  check.rank("dmagnitude", dmagnitude_N, 1);
  check.tensor("dmagnitude", dmagnitude_N, DType::kF32, dmagnitude_N.shape);
  check.tensor("dgain", dgain_N, DType::kF32, dmagnitude_N.shape);
  check.tensor("inverse", inverse_N, DType::kF32, dmagnitude_N.shape);
  check.disjoint("dmagnitude", dmagnitude_N, "dgain", dgain_N);
  check.disjoint("dmagnitude", dmagnitude_N, "inverse", inverse_N);
  if (dmagnitude_N.count() == 0) return;
  table(context).gradient({context.exec(), dmagnitude_N.as<float>(), dgain_N.as<float>(),
                           inverse_N.as<float>(), dmagnitude_N.count()});
}

void magnitude_forward(Context& context, TensorView y_TN, ConstTensorView v_TN,
                       ConstTensorView gain_N, ConstTensorView bias_N) {
  const OpSpan span(context.op_trace(), "magnitude_forward", {0, bytes_of(y_TN, v_TN)});
  const ArgumentChecker check("magnitude_forward");
  check.rank("v", v_TN, 2);
  check.floating("v", v_TN.dtype);
  check.tensor("v", v_TN, v_TN.dtype, v_TN.shape);
  check.tensor("y", y_TN, v_TN.dtype, v_TN.shape);
  check.tensor("gain", gain_N, DType::kF32, {v_TN.shape[1]});
  check.optional("bias", bias_N, v_TN.dtype, {v_TN.shape[1]});
  check.same_or_disjoint("y", y_TN, "v", v_TN);
  if (v_TN.count() == 0) return;
  table(context).forward({context.exec(), y_TN.data, v_TN.data, gain_N.as<float>(), bias_N.data,
                          v_TN.shape[0], v_TN.shape[1], v_TN.dtype});
}

void magnitude_backward(Context& context, const MagnitudeBackward& args) {
  const OpSpan span(context.op_trace(), "magnitude_backward",
                    {0, bytes_of(args.dv_TN, args.dy_TN, args.v_TN)});
  const ArgumentChecker check("magnitude_backward");
  const ConstTensorView& v = args.v_TN;
  check.rank("v", v, 2);
  check.floating("v", v.dtype);
  check.tensor("v", v, v.dtype, v.shape);
  check.tensor("dy", args.dy_TN, v.dtype, v.shape);
  check.optional("dv", args.dv_TN, v.dtype, v.shape);
  if (args.dv_TN.given()) check.tensor("gain", args.gain_N, DType::kF32, {v.shape[1]});
  check.tensor("dgain", args.dgain_N, DType::kF32, {v.shape[1]});
  check.same_or_disjoint("dv", args.dv_TN, "dy", args.dy_TN);
  check.disjoint("dv", args.dv_TN, "v", v);
  check.disjoint("dgain", args.dgain_N, "gain", args.gain_N);
  if (v.count() == 0) return;
  const MagnitudeKernels& kernels = table(context);
  MagnitudeBackwardArgs call{context.exec(),  args.dv_TN.data, args.dgain_N.as<float>(),
                             args.dy_TN.data, v.data,          args.gain_N.as<float>(),
                             nullptr,         v.shape[0],      v.shape[1],
                             v.dtype};
  const auto floats = static_cast<std::size_t>(kernels.backward_scratch_floats(call));
  call.partial_sums = reinterpret_cast<float*>(context.scratch(floats * sizeof(float)));
  kernels.backward(call);
}

}  // namespace trireme
