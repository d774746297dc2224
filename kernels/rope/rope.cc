#include "kernels/rope/rope.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/rope/rope_table.h"

namespace trireme {
namespace {

const RopeKernels& table(const Context& context) {
  return choose_table("rope", context, rope_cpu, &GpuKernels::rope);
}

void check_rotation(const Context& context, const ArgumentChecker& check,
                    ConstTensorView positions_T, ConstTensorView cos_sin_PR,
                    const HeadsShape& shape) {
  check.tensor("positions", positions_T, DType::kI32, {shape.tokens});
  check.rank("cos_sin", cos_sin_PR, 2);
  const std::int64_t rotated = cos_sin_PR.shape[1];
  check.that(rotated % 2 == 0 && rotated <= shape.head_dim, "cos_sin",
             "turns an odd number of dims, or more than a head has");
  check.tensor("cos_sin", cos_sin_PR, DType::kF32, {cos_sin_PR.shape[0], rotated});
  if (!context.on_gpu()) check.indices("positions", positions_T, cos_sin_PR.shape[0]);
}

void check_forward(const Context& context, const RopeForward& args, const HeadsShape& shape) {
  const ArgumentChecker check("rope_forward");
  check.floating("in", args.in.dtype);
  check.that(shape.head_dim % 2 == 0, "in", "an odd head size cannot rotate in pairs");
  check.heads("in", args.in, args.in.dtype, shape);
  check.heads("out", args.out, args.in.dtype, shape);
  check_rotation(context, check, args.positions_T, args.cos_sin_PR, shape);
  check.same_or_other_heads("out", args.out, args.in);
  if (!args.weight_D.given()) return;
  check.tensor("weight", args.weight_D, args.in.dtype, {shape.head_dim});
  check.tensor("rstd", args.rstd_TH, DType::kF32, {shape.tokens, shape.heads});
  check.that(args.out.data != args.in.data || shape.tokens == 0, "out",
             "may not be in with a weight");
}

void check_backward(const Context& context, const RopeBackward& args, const HeadsShape& shape) {
  const ArgumentChecker check("rope_backward");
  check.floating("dout", args.dout.dtype);
  check.that(shape.head_dim % 2 == 0, "dout", "an odd head size cannot rotate in pairs");
  check.heads("dout", args.dout, args.dout.dtype, shape);
  check.heads("din", args.din, args.dout.dtype, shape);
  check_rotation(context, check, args.positions_T, args.cos_sin_PR, shape);
  check.same_or_other_heads("din", args.din, args.dout);
  if (!args.weight_D.given()) return;
  check.heads("in", args.in, args.dout.dtype, shape);
  check.tensor("weight", args.weight_D, args.dout.dtype, {shape.head_dim});
  check.tensor("rstd", args.rstd_TH, DType::kF32, {shape.tokens, shape.heads});
  check.optional("dweight", args.dweight_D, DType::kF32, {shape.head_dim});
}

}  // namespace

void rope_forward(Context& context, const RopeForward& args) {
  const OpSpan span(context.op_trace(), "rope_forward", {0, bytes_of(args.out, args.in)});
  const HeadsShape shape{args.in.tokens, args.in.heads, args.in.head_dim};
  check_forward(context, args, shape);
  if (shape.tokens == 0) return;
  table(context).forward({context.exec(), args.out.data, args.in.data, args.out.token_stride,
                          args.in.token_stride, args.positions_T.as<std::int32_t>(),
                          args.cos_sin_PR.as<float>(), args.weight_D.data, args.rstd_TH.as<float>(),
                          shape.tokens, shape.heads, shape.head_dim, args.cos_sin_PR.shape[1],
                          args.eps, args.weight_offset, args.in.dtype});
}

void rope_backward(Context& context, const RopeBackward& args) {
  const OpSpan span(
      context.op_trace(), "rope_backward",
      {0, bytes_of(args.din, args.dout) + (args.weight_D.given() ? bytes_of(args.in) : 0)});
  const HeadsShape shape{args.dout.tokens, args.dout.heads, args.dout.head_dim};
  check_backward(context, args, shape);
  if (shape.tokens == 0) return;
  const RopeKernels& kernels = table(context);
  const bool norm = args.weight_D.given();
  RopeBackwardArgs call{context.exec(),
                        args.din.data,
                        args.dout.data,
                        args.in.data,
                        args.din.token_stride,
                        args.dout.token_stride,
                        args.in.token_stride,
                        args.positions_T.as<std::int32_t>(),
                        args.cos_sin_PR.as<float>(),
                        args.weight_D.data,
                        norm ? args.rstd_TH.as<float>() : nullptr,
                        norm ? args.dweight_D.as<float>() : nullptr,
                        nullptr,
                        shape.tokens,
                        shape.heads,
                        shape.head_dim,
                        args.cos_sin_PR.shape[1],
                        args.weight_offset,
                        args.dout.dtype,
                        context.multiprocessors()};
  const auto floats = static_cast<std::size_t>(kernels.backward_scratch_floats(call));
  call.partial_sums = reinterpret_cast<float*>(context.scratch(floats * sizeof(float)));
  kernels.backward(call);
}

}  // namespace trireme
