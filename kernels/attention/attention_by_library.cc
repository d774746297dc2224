// Attention on a GPU by a library's kernels: its layouts, and the memory of a call.

#include <algorithm>

#include "base/math.h"
#include "kernels/attention/attention_gpu_table.h"
#include "kernels/attention/attention_internal.h"
#include "kernels/common/check_args.h"
#include "kernels/common/dispatch.h"

namespace trireme {
namespace attention_internal {
namespace {

constexpr std::size_t kScratchAlignment = 256;
/// A library's loads take 16 bytes.
constexpr std::int64_t kRowUnit = 8;

/// Tokens 0 ... T - 1 of each sequence.
bool whole(std::span<const PositionRange> ranges, std::int64_t tokens) {
  std::int64_t next = 0;
  for (const PositionRange& range : ranges) {
    if (range.count == 0) continue;
    if (range.first != next) return false;
    next += range.count;
  }
  return next == tokens;
}

bool rows_suit(const ConstHeadsView& view) {
  return view.token_stride % kRowUnit == 0 &&
         reinterpret_cast<std::uintptr_t>(view.data) % (2 * kRowUnit) == 0;
}

void check_heads(const ArgumentChecker& check, const char* name, const ConstHeadsView& view) {
  check.that(rows_suit(view), name, "a library reads rows that are multiples of 16 bytes");
}

/// Whether the window is shorter than the sequence.
bool hides_keys(const AttentionShape& shape, const AttentionMask& mask) {
  return mask.window != 0 && mask.window < shape.q_tokens;
}

bool whole_sequences(const AttentionShape& shape, const AttentionMask& mask) {
  return shape.q_tokens == shape.kv_tokens && whole(mask.q, shape.q_tokens) &&
         whole(mask.kv, shape.kv_tokens);
}

/// The layout that both passes ask for, without the strides of o and dO.
AttentionLayout layout_of(const ArgumentChecker& check, const AttentionShape& shape,
                          const AttentionMask& mask, const ConstHeadsView& q,
                          const ConstHeadsView& k, const ConstHeadsView& v) {
  check.that(shape.type == DType::kBF16, "q", "a library serves bf16");
  check.that(shape.head_dim % kRowUnit == 0, "q", "a library serves heads of a multiple of 8");
  check.that(shape.value_dim % kRowUnit == 0, "v", "a library serves heads of a multiple of 8");
  check.that(whole_sequences(shape, mask), "mask", "a library serves whole sequences");
  check.that(!mask.first_key_T.given(), "mask.first_key", "a library knows no documents");
  check.that(!hides_keys(shape, mask), "mask.window", "a library knows no windows");
  check_heads(check, "q", q);
  check_heads(check, "k", k);
  check_heads(check, "v", v);
  return {shape.sequences, shape.q_tokens, shape.heads,    shape.kv_heads, shape.head_dim,
          shape.value_dim, q.token_stride, k.token_stride, v.token_stride};
}

/// A call and its scratch memory.
struct Prepared {
  AttentionLibraryCall call;
  LibraryScratch offsets;
  std::byte* scratch;

  Prepared(Context& context, const AttentionLayout& shape, LibraryPass pass,
           const AttentionLibraryKernels& library)
      : offsets(library_scratch(shape, pass, library.workspace_bytes(shape, pass))) {
    const auto begin =
        reinterpret_cast<std::uintptr_t>(context.scratch(offsets.bytes + kScratchAlignment));
    scratch = reinterpret_cast<std::byte*>(round_up(begin, kScratchAlignment));
    call.exec = context.exec();
    call.shape = shape;
    call.pass = pass;
    call.workspace = scratch + offsets.workspace;
  }
  void set(LibraryTensor tensor, const void* memory) {
    call.memory[static_cast<std::size_t>(tensor)] = const_cast<void*>(memory);
  }
};

std::string missing() {
  const AttentionLibraryKernels* const library = gpu_kernels().attention_cudnn;
  if (library == nullptr) return "this program was built without cuDNN";
  const char* const problem = library->missing();
  return problem == nullptr ? "" : problem;
}

std::int64_t version() {
  const AttentionLibraryKernels* const library = gpu_kernels().attention_cudnn;
  return library == nullptr ? 0 : library->version();
}

std::int64_t bytes(const AttentionLayout& layout, bool backward) {
  const auto of = [&](LibraryPass pass) {
    const auto workspace = static_cast<std::size_t>(library_workspace_bound(layout, pass));
    return static_cast<std::int64_t>(library_scratch(layout, pass, workspace).bytes);
  };
  const std::int64_t forward = of(LibraryPass::kForward);
  return backward ? std::max(forward, of(LibraryPass::kBackward)) : forward;
}

void prepare(const AttentionLayout& layout, bool backward) {
  const AttentionLibraryKernels& library = attention_library();
  AttentionLayout forward = layout;
  forward.deterministic = true;
  forward.d_o_stride = forward.written_stride = 0;
  library.workspace_bytes(forward, LibraryPass::kForward);
  if (backward) library.workspace_bytes(layout, LibraryPass::kBackward);
}

}  // namespace

bool served_by_library(const AttentionShape& shape, const AttentionMask& mask,
                       std::initializer_list<ConstHeadsView> heads) {
  const AttentionBackend::Serves& serves = cudnn_attention.serves;
  return shape.type == DType::kBF16 && shape.head_dim % serves.head_dim_step == 0 &&
         shape.value_dim % serves.head_dim_step == 0 && shape.q_tokens >= serves.tokens_min &&
         whole_sequences(shape, mask) && !mask.first_key_T.given() && !hides_keys(shape, mask) &&
         std::all_of(heads.begin(), heads.end(), [](const ConstHeadsView& view) {
           return view.data != nullptr && rows_suit(view);
         });
}

bool library_writes(const AttentionBackward::Written& written) {
  const auto suits = [&](const HeadsView& view) {
    return rows_suit(view) && view.token_stride == written.dq.token_stride;
  };
  return written.given() && suits(written.dq) && suits(written.dk) && suits(written.dv);
}

const AttentionLibraryKernels& attention_library() {
  const std::string problem = missing();
  if (!problem.empty()) throw EnvironmentError("attention: {}", problem);
  return *gpu_kernels().attention_cudnn;
}

void forward_by_library(Context& context, const AttentionShape& shape, const AttentionForward& args,
                        const AttentionLibraryKernels& library) {
  const ArgumentChecker check("attention_forward");
  check.that(args.dropout.share == 0, "dropout", "a library serves none");
  AttentionLayout asked = layout_of(check, shape, args.mask, args.q, args.k, args.v);
  check_heads(check, "o", args.o);
  asked.o_stride = args.o.token_stride;
  Prepared prepared(context, asked, LibraryPass::kForward, library);
  prepared.set(LibraryTensor::kQ, args.q.data);
  prepared.set(LibraryTensor::kK, args.k.data);
  prepared.set(LibraryTensor::kV, args.v.data);
  prepared.set(LibraryTensor::kO, args.o.data);
  auto* const lse = reinterpret_cast<float*>(prepared.scratch + prepared.offsets.lse);
  prepared.set(LibraryTensor::kLse, lse);
  prepared.call.scale = args.scale;
  library.run(prepared.call);
  gpu_table("attention", &GpuKernels::attention)
      .transpose_lse({context.exec(), asked.sequences, asked.tokens, asked.heads,
                      AttentionTransposeLse::Order::kByToken, args.lse_TH.as<float>(), lse});
}

void backward_by_library(Context& context, const AttentionShape& shape,
                         const AttentionBackward& args, const AttentionLibraryKernels& library) {
  const ArgumentChecker check("attention_backward");
  check.that(args.dropout.share == 0, "dropout", "a library serves none");
  AttentionLayout asked = layout_of(check, shape, args.mask, args.q, args.k, args.v);
  check.that(args.o.data != nullptr, "o", "a library makes delta of it");
  check_heads(check, "o", args.o);
  check_heads(check, "d_o", args.d_o);
  asked.o_stride = args.o.token_stride;
  asked.d_o_stride = args.d_o.token_stride;
  asked.deterministic = context.deterministic();
  const AttentionBackward::Written& written = args.written;
  if (written.given()) {
    check.that(library_writes(written), "written",
               "a library writes rows of one stride that are multiples of 16 bytes");
    asked.written_stride = written.dq.token_stride;
  }
  Prepared prepared(context, asked, LibraryPass::kBackward, library);
  const AttentionGpuKernels& own = gpu_table("attention", &GpuKernels::attention);
  const auto in_scratch = [&](LibraryTensor tensor, std::size_t offset) {
    prepared.set(tensor, prepared.scratch + offset);
    return prepared.scratch + offset;
  };
  const LibraryScratch& at = prepared.offsets;
  auto* const lse = reinterpret_cast<float*>(in_scratch(LibraryTensor::kLse, at.lse));
  own.transpose_lse({context.exec(), asked.sequences, asked.tokens, asked.heads,
                     AttentionTransposeLse::Order::kByHead, lse, args.lse_TH.as<float>()});
  prepared.set(LibraryTensor::kQ, args.q.data);
  prepared.set(LibraryTensor::kK, args.k.data);
  prepared.set(LibraryTensor::kV, args.v.data);
  prepared.set(LibraryTensor::kO, args.o.data);
  prepared.set(LibraryTensor::kDO, args.d_o.data);
  in_scratch(LibraryTensor::kDelta, at.delta);
  if (!asked.deterministic) in_scratch(LibraryTensor::kDQSum, at.dq_sum);
  prepared.call.scale = args.scale;
  if (written.given()) {
    prepared.set(LibraryTensor::kDQ, written.dq.data);
    prepared.set(LibraryTensor::kDK, written.dk.data);
    prepared.set(LibraryTensor::kDV, written.dv.data);
    return library.run(prepared.call);
  }
  const std::byte* const dq = in_scratch(LibraryTensor::kDQ, at.dq);
  const std::byte* const dk = in_scratch(LibraryTensor::kDK, at.dk);
  const std::byte* const dv = in_scratch(LibraryTensor::kDV, at.dv);
  library.run(prepared.call);
  const auto add = [&](const HeadsView& to, const std::byte* from) {
    own.add_heads({context.exec(),
                   to.tokens,
                   to.heads,
                   to.head_dim,
                   {reinterpret_cast<float*>(to.data), to.token_stride},
                   from});
  };
  add(args.dq, dq);
  add(args.dk, dk);
  add(args.dv, dv);
}

}  // namespace attention_internal

const AttentionBackend cudnn_attention = {
    .name = "cudnn",
    .serves = {.cpu = false,
               .f32 = false,
               .documents = false,
               .windows = false,
               .sequence_parts = false,
               .dropout = false,
               .tokens_min = 2,
               .head_dim_step = attention_internal::kRowUnit},
    .forward =
        [](Context& context, const AttentionShape& shape, const AttentionForward& args) {
          using namespace attention_internal;
          forward_by_library(context, shape, args, attention_library());
          return false;
        },
    .backward =
        [](Context& context, const AttentionShape& shape, const AttentionBackward& args) {
          using namespace attention_internal;
          backward_by_library(context, shape, args, attention_library());
        },
    .writes =
        [](Context&, const AttentionShape&, const AttentionBackward& args) {
          return attention_internal::library_writes(args.written) ? AttentionWrites::kFromOutput
                                                                  : AttentionWrites::kNo;
        },
    .library = "cudnn",
    .missing = attention_internal::missing,
    .remedy = attention_internal::kCudnnRemedy,
    .version = attention_internal::version,
    .bytes = attention_internal::bytes,
    .prepare = attention_internal::prepare};

}  // namespace trireme
