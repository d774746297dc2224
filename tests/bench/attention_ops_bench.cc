// Attention of a training step and of a decoder, in operations of the visible (query, key) pairs.

#include <cmath>

#include "bench/op_bench.h"
#include "kernels/attention/attention.h"
#include "kernels/attention/attention_internal.h"

namespace trireme::bench {
namespace {

struct Heads {
  HeadsView q, k, v;
};

/// q, k and v as columns of one wide tensor, as the model has them.
Heads heads_in(const TensorView& qkv, const Size& size) {
  const std::int64_t d = size.head_dim();
  return {heads_of(qkv, 0, size.heads, d), heads_of(qkv, size.hidden, size.kv_heads, d),
          heads_of(qkv, size.hidden + size.kv_hidden(), size.kv_heads, d)};
}

AttentionForward forward_args(Operands& operands) {
  const Size& size = operands.size;
  const Heads in = heads_in(operands.typed({size.rows(), size.qkv()}), size);
  AttentionForward args;
  args.o = heads_of(operands.typed({size.rows(), size.hidden}), 0, size.heads, size.head_dim());
  args.lse_TH = operands.f32({size.rows(), size.heads});
  args.q = in.q;
  args.k = in.k;
  args.v = in.v;
  args.mask.sequences = size.sequences;
  args.scale = 1 / std::sqrt(static_cast<float>(size.head_dim()));
  return args;
}

AttentionBackward backward_args(Operands& operands, const AttentionForward& forward) {
  const Size& size = operands.size;
  const Heads d = heads_in(operands.f32({size.rows(), size.qkv()}), size);
  AttentionBackward args;
  args.dq = d.q;
  args.dk = d.k;
  args.dv = d.v;
  args.d_o = heads_of(operands.typed({size.rows(), size.hidden}), 0, size.heads, size.head_dim());
  args.q = forward.q;
  args.k = forward.k;
  args.v = forward.v;
  args.lse_TH = forward.lse_TH;
  args.delta_TH = operands.f32({size.rows(), size.heads});
  args.mask = forward.mask;
  args.scale = forward.scale;
  return args;
}

std::function<void(Context&)> forward(Operands& operands, std::int64_t window = 0) {
  const PositionRange all{0, operands.size.tokens};
  AttentionForward args = forward_args(operands);
  args.mask.window = window;
  return [args, all](Context& context) mutable {
    args.mask.q = args.mask.kv = {&all, 1};
    attention_forward(context, args);
  };
}

/// One new token of each sequence over a full cache.
std::function<void(Context&)> decode(Operands& operands) {
  const PositionRange all{0, operands.size.tokens}, last{operands.size.tokens - 1, 1};
  AttentionForward args = forward_args(operands);
  args.q.tokens = args.o.tokens = operands.size.sequences;
  args.lse_TH.shape = {operands.size.sequences, operands.size.heads};
  return [args, all, last](Context& context) mutable {
    args.mask.q = {&last, 1};
    args.mask.kv = {&all, 1};
    attention_forward(context, args);
  };
}

std::function<void(Context&)> backward(Operands& operands, std::int64_t window = 0) {
  const PositionRange all{0, operands.size.tokens};
  AttentionForward before = forward_args(operands);
  before.mask.q = before.mask.kv = {&all, 1};
  before.mask.window = window;
  // The gradient's softmax needs the forward's own log-sum-exp.
  Context context(bench_device(), 1, detect_isa());
  attention_forward(context, before);
  AttentionBackward args = backward_args(operands, before);
  args.o = before.o;
  return [args, all](Context& timed) mutable {
    args.mask.q = args.mask.kv = {&all, 1};
    attention_backward(timed, args);
  };
}

std::function<void(Context&)> delta(Operands& operands) {
  const AttentionForward args = forward_args(operands);
  const TensorView out = operands.f32({args.o.tokens, args.o.heads});
  return [args, out](Context& context) { attention_delta(context, out, args.o, args.o); };
}

std::function<void(Context&)> merge(Operands& operands) {
  const AttentionForward a = forward_args(operands), b = forward_args(operands);
  return [a, b](Context& context) { attention_merge(context, a.o, a.lse_TH, b.o, b.lse_TH); };
}

/// The same op by that backend.
std::function<void(Context&)> by(const AttentionBackend& backend,
                                 const std::function<void(Context&)>& op) {
  return [&backend, op](Context& context) {
    context.set_attention_backend(backend);
    op(context);
    context.set_attention_backend(own_attention);
  };
}
std::function<void(Context&)> by_library(const std::function<void(Context&)>& op) {
  return by(cudnn_attention, op);
}
/// The same op where equal bits are not asked for.
std::function<void(Context&)> in_any_order(const std::function<void(Context&)>& op) {
  return [op](Context& context) {
    context.set_deterministic(false);
    op(context);
    context.set_deterministic(true);
  };
}

void add_variants_of_gpus() {
  add_op("attention_forward_mma", {DType::kBF16}, [](Operands& operands) {
    return by(attention_internal::mma_attention, forward(operands));
  });
  add_op("attention_backward_any_order", {DType::kBF16},
         [](Operands& operands) { return in_any_order(backward(operands)); });
  add_op("attention_backward_mma", {DType::kBF16}, [](Operands& operands) {
    return by(attention_internal::mma_attention, backward(operands));
  });
  add_op("attention_backward_mma_any_order", {DType::kBF16}, [](Operands& operands) {
    return by(attention_internal::mma_attention, in_any_order(backward(operands)));
  });
  if (!cudnn_attention.missing().empty()) return;
  add_op("attention_forward_cudnn", {DType::kBF16},
         [](Operands& operands) { return by_library(forward(operands)); });
  add_op("attention_backward_cudnn", {DType::kBF16},
         [](Operands& operands) { return by_library(backward(operands)); });
  add_op("attention_backward_cudnn_any_order", {DType::kBF16},
         [](Operands& operands) { return in_any_order(by_library(backward(operands))); });
}

}  // namespace

void add_attention() {
  add_op("attention_forward", kBothTypes, [](Operands& operands) { return forward(operands); });
  add_op("attention_backward", kBothTypes, [](Operands& operands) { return backward(operands); });
  // Where a query sees an eighth of the sequence.
  add_op("attention_forward_window", kBothTypes,
         [](Operands& operands) { return forward(operands, operands.size.tokens / 8); });
  add_op("attention_backward_window", kBothTypes,
         [](Operands& operands) { return backward(operands, operands.size.tokens / 8); });
  add_op("attention_delta", kBothTypes, delta);
  add_op("attention_merge", kBothTypes, merge);
  add_op("attention_decode", kBothTypes, decode);
  if (bench_device().kind == DeviceKind::kCuda) add_variants_of_gpus();
}

}  // namespace trireme::bench
