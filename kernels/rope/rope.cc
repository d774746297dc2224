#include "kernels/rope/rope.h"

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/quantize/quantize_internal.h"
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
  const DType type = args.din.dtype;
  const bool rounds = args.dout.dtype == DType::kF32 && type == DType::kBF16;
  check.floating("din", type);
  check.that(shape.head_dim % 2 == 0, "dout", "an odd head size cannot rotate in pairs");
  check.heads("dout", args.dout, rounds ? DType::kF32 : type, shape);
  check.heads("din", args.din, type, shape);
  check_rotation(context, check, args.positions_T, args.cos_sin_PR, shape);
  check.optional("amax", args.amax_1, DType::kI32, {1});
  check.that(!rounds || args.din.data != args.dout.data || shape.tokens == 0, "din",
             "may not be dout, which has another type");
  if (!rounds) check.same_or_other_heads("din", args.din, args.dout);
  if (!args.weight_D.given()) return;
  check.heads("in", args.in, type, shape);
  check.tensor("weight", args.weight_D, type, {shape.head_dim});
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
                          args.eps, args.weight_offset, args.in.dtype, args.in.dtype, nullptr});
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
                        args.din.dtype,
                        args.dout.dtype,
                        reinterpret_cast<std::int32_t*>(args.amax_1.data),
                        context.multiprocessors()};
  const auto floats = static_cast<std::size_t>(kernels.backward_scratch_floats(call));
  call.partial_sums = reinterpret_cast<float*>(context.scratch(floats * sizeof(float)));
  kernels.backward(call);
}

void rope_backward_codes(Context& context, const RopeBackwardCodes& args) {
  using quantize_internal::MadeCodes;
  const char* const op = "rope_backward_codes";
  const QuantizedView &along = args.along, &across = args.across;
  const OpSpan span(
      context.op_trace(), op,
      {0, bytes_of(args.dout_TX, along.codes, along.scales, across.codes, across.scales)});
  const ArgumentChecker check(op);
  check.rank("dout", args.dout_TX, 2);
  check.floating("dout", args.dout_TX.dtype);
  const std::int64_t tokens = args.dout_TX.shape[0], columns = args.dout_TX.shape[1];
  check.tensor("dout", args.dout_TX, args.dout_TX.dtype, {tokens, columns});
  const std::array<MadeCodes, 2> made = {MadeCodes{"along", along, Transpose::kNo},
                                         MadeCodes{"across", across, Transpose::kYes}};
  for (const MadeCodes& of : made) {
    quantize_internal::check_made(op, of, tokens, columns);
    check.disjoint(of.name, of.out.codes, "dout", args.dout_TX);
    check.disjoint(of.name, of.out.scales, "dout", args.dout_TX);
  }
  const auto parts = along.columns.given_parts();
  check.that(parts.size() == 3, "along", "expected q's, k's and v's columns");
  const std::int64_t q = parts[0].size, k = parts[1].size, heads = args.head_dim;
  check.that(
      heads > 0 && heads % 8 == 0 && q % heads == 0 && k % heads == 0 && parts[2].size % 8 == 0,
      "along", "is not of heads whose sizes are multiples of 8");
  for (const ConstTensorView& table : {args.q_cos_sin_PR, args.k_cos_sin_PR})
    check_rotation(context, check, args.positions_T, table, {tokens, 1, heads});
  const std::int64_t rotated = args.k_cos_sin_PR.shape[1];
  check.that(rotated % 16 == 0 && args.q_cos_sin_PR.shape[1] == rotated, "cos_sin",
             "turns dims that are no multiple of 16, or others of q than of k");
  if (tokens == 0) return;
  const auto codes = quantize_internal::args_of_made(context, DType::kBF16, made);
  table(context).backward_codes({{codes[0], codes[1]},
                                 args.dout_TX.data,
                                 columns,
                                 args.positions_T.as<std::int32_t>(),
                                 args.q_cos_sin_PR.as<float>(),
                                 args.k_cos_sin_PR.as<float>(),
                                 q,
                                 q + k,
                                 heads,
                                 rotated,
                                 args.dout_TX.dtype});
}

}  // namespace trireme
