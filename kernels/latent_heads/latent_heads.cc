#include "kernels/latent_heads/latent_heads.h"

#include <algorithm>

#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"
#include "kernels/common/op_work.h"
#include "kernels/latent_heads/latent_heads_table.h"

namespace trireme {
namespace {

const LatentHeadsKernels& table(const Context& context) {
  return choose_table("latent_heads", context, latent_heads_cpu, &GpuKernels::latent_heads);
}

std::int64_t element_bytes(DType type) { return static_cast<std::int64_t>(size_of(type)); }

/// An op's name and what it works on, for checks and calls.
struct Call {
  Context& context;
  const char* name;
  DType type;
  std::int64_t tokens, heads;
  ArgumentChecker check{name};

  void dims(const char* typed, const LatentDims& of) const {
    check.floating(typed, type);
    check.that(of.nope >= 0 && of.rope >= 0 && of.value >= 0, "dims", "negative");
    check.that(of.rope % 2 == 0, "dims", "an odd part cannot rotate in pairs");
  }
  void rotation(const LatentRope& rope, std::int64_t rotated) const {
    if (!rope.positions_T.given() || rotated == 0) return;
    check.tensor("positions", rope.positions_T, DType::kI32, {tokens});
    check.rank("cos_sin", rope.cos_sin_PR, 2);
    check.tensor("cos_sin", rope.cos_sin_PR, DType::kF32, {rope.cos_sin_PR.shape[0], rotated});
    if (!context.on_gpu()) check.indices("positions", rope.positions_T, rope.cos_sin_PR.shape[0]);
  }
  void rows(const char* what, const ConstTensorView& view, std::int64_t width) const {
    check.tensor(what, view, type, {tokens, width});
  }
  /// At least `least` dims each.
  void head(const char* what, const ConstHeadsView& view, std::int64_t least) const {
    check.heads(what, view, type, {tokens, heads, view.head_dim});
    check.that(view.head_dim >= least, what, "a head has fewer dims than its parts");
  }
  /// What all heads share.
  void shared(const char* what, const ConstHeadsView& view, std::int64_t dims) const {
    if (dims > 0) check.heads(what, view, type, {tokens, 1, dims});
  }
  void apart(const char* what, const void* out, const void* in) const {
    check.that(out != in || tokens == 0 || out == nullptr, what, "may not be an input");
  }

  [[nodiscard]] LatentHeadsArgs args(const HeadsView& out) const {
    return {context.exec(),
            out.data,
            out.token_stride,
            out.head_dim,
            out.head_dim,
            {},
            {},
            {},
            tokens,
            heads,
            1,
            type,
            name};
  }
  void run(const LatentHeadsArgs& args) const {
    if (args.tokens > 0 && args.heads > 0 && args.dims > 0) table(context).heads(args);
  }
};

LatentAngles angles_of(const LatentRope& rope, std::int64_t rotated, LatentTurn turn) {
  if (rotated == 0 || !rope.positions_T.given()) return {};
  return {rope.positions_T.as<std::int32_t>(), rope.cos_sin_PR.as<float>(), turn, rope.interleaved};
}

template <class Byte>
Byte* behind(Byte* data, std::int64_t elements, DType type) {
  return data == nullptr ? nullptr : data + elements * element_bytes(type);
}

/// The dims from `first` on of each of a row's heads, which have `head` dims.
LatentPart part_of(const ConstTensorView& rows, std::int64_t head, std::int64_t first,
                   std::int64_t dims) {
  return {behind(rows.data, first, rows.dtype), rows.shape[1], head, dims};
}
LatentPart part_of(const ConstHeadsView& heads, std::int64_t first, std::int64_t dims) {
  return {behind(heads.data, first, heads.dtype), heads.token_stride, heads.head_dim, dims};
}
/// The same as a place for results, alone.
HeadsView place_of(const TensorView& rows, std::int64_t heads, std::int64_t head,
                   std::int64_t first) {
  return {
      behind(rows.data, first, rows.dtype), rows.dtype, rows.shape[0], heads, head, rows.shape[1]};
}

}  // namespace

void latent_queries(Context& context, const LatentQueries& args) {
  const auto [nope, rope, value] = args.dims;
  const Call call{context, "latent_queries", args.q.dtype, args.q.tokens, args.q.heads};
  call.dims("q", args.dims);
  call.head("q", args.q, nope + rope);
  call.rows("in", args.in_TX, call.heads * (nope + rope));
  call.rotation(args.rope, rope);
  call.apart("q", args.q.data, args.in_TX.data);
  const OpSpan span(context.op_trace(), call.name, {0, bytes_of(args.q, args.in_TX)});
  LatentHeadsArgs heads = call.args(args.q);
  heads.copied = part_of(args.in_TX, nope + rope, 0, nope);
  heads.turned = part_of(args.in_TX, nope + rope, nope, rope);
  heads.angles = angles_of(args.rope, rope, LatentTurn::kForward);
  call.run(heads);
}

void latent_keys(Context& context, const LatentKeys& args) {
  const auto [nope, rope, value] = args.dims;
  const Call call{context, "latent_keys", args.k.dtype, args.k.tokens, args.k.heads};
  call.dims("k", args.dims);
  call.head("k", args.k, nope + rope);
  call.head("v", args.v, value);
  call.rows("in", args.in_TX, call.heads * (nope + value));
  call.shared("r", args.r, rope);
  call.rotation(args.rope, rope);
  for (const void* in : {args.in_TX.data, args.r.data}) {
    call.apart("k", args.k.data, in);
    call.apart("v", args.v.data, in);
  }
  const OpSpan span(context.op_trace(), call.name,
                    {0, bytes_of(args.k, args.v, args.in_TX) + (rope > 0 ? bytes_of(args.r) : 0)});
  LatentHeadsArgs keys = call.args(args.k), values = call.args(args.v);
  keys.copied = part_of(args.in_TX, nope + value, 0, nope);
  keys.turned = part_of(args.r, 0, rope);
  keys.turned.head_stride = 0;
  keys.angles = angles_of(args.rope, rope, LatentTurn::kForward);
  values.copied = part_of(args.in_TX, nope + value, nope, value);
  call.run(keys);
  call.run(values);
}

void latent_queries_backward(Context& context, const LatentQueriesBackward& args) {
  const auto [nope, rope, value] = args.dims;
  const Call call{context, "latent_queries_backward", args.dq.dtype, args.dq.tokens, args.dq.heads};
  call.dims("dq", args.dims);
  call.head("dq", args.dq, nope + rope);
  call.rows("din", args.din_TX, call.heads * (nope + rope));
  call.rotation(args.rope, rope);
  call.apart("din", args.din_TX.data, args.dq.data);
  const OpSpan span(context.op_trace(), call.name, {0, 2 * bytes_of(args.din_TX)});
  LatentHeadsArgs heads = call.args(place_of(args.din_TX, call.heads, nope + rope, 0));
  heads.copied = part_of(args.dq, 0, nope);
  heads.turned = part_of(args.dq, nope, rope);
  heads.angles = angles_of(args.rope, rope, LatentTurn::kBack);
  call.run(heads);
}

void latent_keys_backward(Context& context, const LatentKeysBackward& args) {
  const auto [nope, rope, value] = args.dims;
  const Call call{context, "latent_keys_backward", args.dk.dtype, args.dk.tokens, args.dk.heads};
  call.dims("dk", args.dims);
  call.check.that(call.heads > 0, "dk", "has no heads");
  call.head("dk", args.dk, nope + rope);
  call.head("dv", args.dv, value);
  call.rows("din", args.din_TX, call.heads * (nope + value));
  call.shared("dr", args.dr, rope);
  call.rotation(args.rope, rope);
  for (const void* in : {args.dk.data, args.dv.data}) {
    call.apart("din", args.din_TX.data, in);
    if (rope > 0) call.apart("dr", args.dr.data, in);
  }
  const std::int64_t of_dk = call.tokens * call.heads * rope * element_bytes(call.type);
  const OpSpan span(context.op_trace(), call.name,
                    {0, 2 * bytes_of(args.din_TX) + of_dk + (rope > 0 ? bytes_of(args.dr) : 0)});
  LatentHeadsArgs keys = call.args(place_of(args.din_TX, call.heads, nope + value, 0)),
                  values = call.args(place_of(args.din_TX, call.heads, nope + value, nope));
  keys.dims = nope;
  keys.copied = part_of(args.dk, 0, nope);
  values.dims = value;
  values.copied = part_of(args.dv, 0, value);
  call.run(keys);
  call.run(values);
  if (rope == 0) return;
  LatentHeadsArgs sums = call.args(args.dr);
  sums.heads = 1;
  sums.summed = call.heads;
  sums.turned = part_of(args.dk, nope, rope);
  sums.angles = angles_of(args.rope, rope, LatentTurn::kBack);
  call.run(sums);
}

void latent_row(Context& context, const LatentRow& args) {
  const Call call{context, "latent_row", args.out.dtype, args.out.tokens, 1};
  call.check.rank("latent", args.latent_TL, 2);
  const std::int64_t latent = args.latent_TL.shape[1], rope = args.out.head_dim - latent;
  call.dims("out", {0, std::max<std::int64_t>(rope, 0), 0});
  call.head("out", args.out, latent);
  call.rows("latent", args.latent_TL, latent);
  call.shared("r", args.r, rope);
  call.rotation(args.rope, rope);
  call.apart("out", args.out.data, args.latent_TL.data);
  call.apart("out", args.out.data, args.r.data);
  const OpSpan span(context.op_trace(), call.name,
                    {0, bytes_of(args.out, args.latent_TL) + (rope > 0 ? bytes_of(args.r) : 0)});
  LatentHeadsArgs row = call.args(args.out);
  row.copied = part_of(args.latent_TL, 0, 0, latent);
  row.turned = part_of(args.r, 0, rope);
  row.angles = angles_of(args.rope, rope, LatentTurn::kForward);
  call.run(row);
}

void latent_absorbed_queries(Context& context, const LatentAbsorbedQueries& args) {
  const auto [nope, rope, value] = args.dims;
  const Call call{context, "latent_absorbed_queries", args.out.dtype, args.out.tokens,
                  args.out.heads};
  call.dims("out", args.dims);
  call.check.rank("w", args.w_XL, 2);
  const std::int64_t latent = args.w_XL.shape[1];
  call.check.tensor("w", args.w_XL, call.type, {call.heads * (nope + value), latent});
  call.check.heads("out", args.out, call.type, {call.tokens, call.heads, latent + rope});
  call.rows("in", args.in_TX, call.heads * (nope + rope));
  call.rotation(args.rope, rope);
  call.apart("out", args.out.data, args.in_TX.data);
  const std::int64_t products = call.heads * nope * latent;
  const OpSpan span(
      context.op_trace(), call.name,
      {2 * call.tokens * products,
       bytes_of(args.out, args.in_TX) + products * element_bytes(call.type), call.type});
  if (call.tokens == 0) return;
  LatentHeadsArgs turned = call.args(args.out);
  turned.out = behind(args.out.data, latent, call.type);
  turned.dims = rope;
  turned.turned = part_of(args.in_TX, nope + rope, nope, rope);
  turned.angles = angles_of(args.rope, rope, LatentTurn::kForward);
  call.run(turned);
  if (call.heads * latent == 0) return;
  table(context).queries({context.exec(), args.out.data, args.in_TX.data, args.w_XL.data,
                          args.out.token_stride, latent + rope, args.in_TX.shape[1], nope + rope,
                          (nope + value) * latent, call.tokens, call.heads, nope, latent,
                          call.type});
}

void latent_absorbed_values(Context& context, const LatentAbsorbedValues& args) {
  const auto [nope, rope, value] = args.dims;
  const Call call{context, "latent_absorbed_values", args.o.dtype, args.o.tokens, args.o.heads};
  call.dims("o", args.dims);
  call.check.rank("w", args.w_XL, 2);
  const std::int64_t latent = args.w_XL.shape[1];
  call.check.tensor("w", args.w_XL, call.type, {call.heads * (nope + value), latent});
  call.check.heads("o", args.o, call.type, {call.tokens, call.heads, value});
  call.check.heads("u", args.u, call.type, {call.tokens, call.heads, latent});
  call.apart("o", args.o.data, args.u.data);
  const std::int64_t products = call.heads * value * latent;
  const OpSpan span(context.op_trace(), call.name,
                    {2 * call.tokens * products,
                     bytes_of(args.o, args.u) + products * element_bytes(call.type), call.type});
  if (call.tokens * call.heads * value == 0) return;
  table(context).values({context.exec(), args.o.data, args.u.data,
                         behind(args.w_XL.data, nope * latent, call.type), args.o.token_stride,
                         value, args.u.token_stride, latent, (nope + value) * latent, call.tokens,
                         call.heads, value, latent, call.type});
}

}  // namespace trireme
