// Each pass of attention by the faster of our own kernels and a library's, as measured.

#include "kernels/attention/attention_internal.h"
#include "kernels/common/kernel_choices.h"
#include "kernels/common/measure_kernel.h"

namespace trireme {

using namespace attention_internal;

namespace {

const AttentionBackend& backend_of(AttentionKernel kernel) {
  return kernel == AttentionKernel::kLibrary ? cudnn_attention : own_attention;
}

AttentionKey key_of(const AttentionShape& shape, bool backward) {
  return {shape.q_tokens, shape.heads, shape.kv_heads, shape.head_dim, shape.value_dim, backward};
}

/// The backward pass of a library that adds in one order keeps every score: it is no candidate
/// where that takes memory which a run would rather have for itself.
constexpr std::int64_t kScoreBytesMax = std::int64_t{1} << 30;

bool backward_is_candidate(const AttentionLayout& layout) {
  AttentionLayout any_order = layout;
  any_order.deterministic = false;
  return cudnn_attention.bytes(layout, true) - cudnn_attention.bytes(any_order, true) <=
         kScoreBytesMax;
}

/// Runs the pass by each of both many times. `run` takes a backend.
template <class Run>
AttentionChoice measure(Context& context, const Run& run) {
  AttentionChoice choice;
  const auto time = [&](AttentionKernel kernel) -> double& {
    return choice.microseconds[static_cast<std::size_t>(kernel)];
  };
  for (const AttentionKernel kernel : {AttentionKernel::kOwn, AttentionKernel::kLibrary})
    time(kernel) = measure_kernel(context, [&] { run(backend_of(kernel)); });
  if (time(AttentionKernel::kLibrary) < time(AttentionKernel::kOwn))
    choice.kernel = AttentionKernel::kLibrary;
  return choice;
}

template <class Run>
const AttentionBackend& fastest(Context& context, const AttentionKey& key, bool library_serves,
                                const Run& run) {
  KernelChoices* const choices = context.kernel_choices();
  if (!library_serves || choices == nullptr) return own_attention;
  if (choices->measuring() && choices->find(key) == nullptr)
    choices->add(key, measure(context, run));
  const AttentionChoice* const choice = choices->find(key);
  return backend_of(choice == nullptr ? AttentionKernel::kOwn : choice->kernel);
}

bool forward(Context& context, const AttentionShape& shape, const AttentionForward& args) {
  const auto run = [&](const AttentionBackend& backend) {
    forward_by(backend, context, shape, args);
  };
  run(fastest(context, key_of(shape, false),
              args.dropout.share == 0 &&
                  served_by_library(shape, args.mask, {args.q, args.k, args.v, args.o}),
              run));
  return true;
}

const AttentionBackend& fastest_backward(Context& context, const AttentionShape& shape,
                                         const AttentionBackward& args) {
  AttentionLayout layout{shape.sequences, shape.q_tokens, shape.heads,
                         shape.kv_heads,  shape.head_dim, shape.value_dim};
  layout.deterministic = context.deterministic();
  return fastest(
      context, key_of(shape, true),
      args.dropout.share == 0 &&
          served_by_library(shape, args.mask, {args.q, args.k, args.v, args.o, args.d_o}) &&
          backward_is_candidate(layout),
      [&](const AttentionBackend& backend) {
        AttentionBackward measured = args;
        if (backend.writes(context, shape, args) == AttentionWrites::kNo) measured.written = {};
        backend.backward(context, shape, measured);
      });
}

void backward(Context& context, const AttentionShape& shape, const AttentionBackward& args) {
  fastest_backward(context, shape, args).backward(context, shape, args);
}

AttentionWrites writes(Context& context, const AttentionShape& shape,
                       const AttentionBackward& args) {
  return fastest_backward(context, shape, args).writes(context, shape, args);
}

}  // namespace

const AttentionBackend fastest_attention = {
    .name = "auto",
    .serves = kServesAll,
    .forward = forward,
    .backward = backward,
    .writes = writes,
    .library = "cudnn",
    .missing = [] { return cudnn_attention.missing(); },
    .remedy = kCudnnRemedy,
    .version = [] { return cudnn_attention.version(); },
    .bytes =
        [](const AttentionLayout& layout, bool backward) {
          return cudnn_attention.bytes(layout, backward && backward_is_candidate(layout));
        },
    .prepare =
        [](const AttentionLayout& layout, bool backward) {
          cudnn_attention.prepare(layout, backward && backward_is_candidate(layout));
        },
    .otherwise = &own_attention};

}  // namespace trireme
