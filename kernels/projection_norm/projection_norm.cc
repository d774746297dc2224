#include "kernels/projection_norm/projection_norm.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/projection_norm/projection_norm_table.h"

namespace trireme {
namespace {

const ProjectionNormKernels& table(const Context& context) {
  return choose_table("projection_norm", context, projection_norm_cpu,
                      &GpuKernels::projection_norm);
}

HeadsShape shape_of(const ConstHeadsView& heads) {
  return {heads.tokens, heads.heads, heads.head_dim};
}

std::int64_t width_of(const ConstHeadsView& heads) { return heads.heads * heads.head_dim; }

}  // namespace

void head_dots(Context& context, TensorView dots_T, const ConstHeadsView& a,
               const ConstHeadsView& b) {
  const OpSpan span(context.op_trace(), "head_dots",
                    {0, a.data == b.data ? bytes_of(a) : bytes_of(a, b)});
  const ArgumentChecker check("head_dots");
  check.floating("a", a.dtype);
  check.heads("a", a, a.dtype, shape_of(a));
  check.heads("b", b, a.dtype, shape_of(a));
  check.tensor("dots", dots_T, DType::kF32, {a.tokens});
  if (a.tokens == 0) return;
  table(context).dots({context.exec(), dots_T.as<float>(), a.data, b.data, a.token_stride,
                       b.token_stride, a.tokens, width_of(a), a.dtype});
}

void projection_norm_forward(Context& context, const ProjectionNormForward& args) {
  const OpSpan span(context.op_trace(), "projection_norm_forward",
                    {0, bytes_of(args.out, args.in)});
  const ArgumentChecker check("projection_norm_forward");
  const DType type = args.in.dtype;
  const std::int64_t tokens = args.in.tokens, width = width_of(args.in);
  check.floating("in", type);
  check.heads("in", args.in, type, shape_of(args.in));
  check.heads("out", args.out, type, shape_of(args.in));
  check.tensor("squares", args.squares_T, DType::kF32, {tokens});
  check.tensor("weight", args.weight_X, type, {width});
  check.that(args.columns >= width, "columns", "are fewer than this rank's");
  check.that(args.out.data != args.in.data || tokens == 0, "out", "may not be in");
  if (tokens == 0 || width == 0) return;
  table(context).forward({context.exec(), args.out.data, args.in.data, args.out.token_stride,
                          args.in.token_stride, args.squares_T.as<float>(), args.weight_X.data,
                          tokens, width, static_cast<double>(args.columns), args.eps, type});
}

void projection_norm_backward(Context& context, const ProjectionNormBackward& args) {
  const OpSpan span(context.op_trace(), "projection_norm_backward",
                    {0, bytes_of(args.din, args.dout, args.in)});
  const ArgumentChecker check("projection_norm_backward");
  const DType type = args.dout.dtype;
  const std::int64_t tokens = args.dout.tokens, width = width_of(args.dout);
  check.floating("dout", type);
  check.heads("dout", args.dout, type, shape_of(args.dout));
  check.heads("din", args.din, type, shape_of(args.dout));
  check.heads("in", args.in, type, shape_of(args.dout));
  check.tensor("squares", args.squares_T, DType::kF32, {tokens});
  check.tensor("dots", args.dots_T, DType::kF32, {tokens});
  check.tensor("weight", args.weight_X, type, {width});
  check.optional("dweight", args.dweight_X, DType::kF32, {width});
  check.that(args.columns >= width, "columns", "are fewer than this rank's");
  check.same_or_other_heads("din", args.din, args.dout);
  check.that(args.din.data != args.in.data || tokens == 0, "din", "may not be in");
  if (tokens == 0 || width == 0) return;
  const ProjectionNormKernels& kernels = table(context);
  ProjectionNormBackwardArgs call{context.exec(),
                                  args.din.data,
                                  args.dout.data,
                                  args.in.data,
                                  args.din.token_stride,
                                  args.dout.token_stride,
                                  args.in.token_stride,
                                  args.squares_T.as<float>(),
                                  args.dots_T.as<float>(),
                                  args.weight_X.data,
                                  args.dweight_X.as<float>(),
                                  nullptr,
                                  tokens,
                                  width,
                                  static_cast<double>(args.columns),
                                  args.eps,
                                  type};
  const auto floats = static_cast<std::size_t>(kernels.backward_scratch_floats(call));
  call.partial_sums = reinterpret_cast<float*>(context.scratch(floats * sizeof(float)));
  kernels.backward(call);
}

}  // namespace trireme
