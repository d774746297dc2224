#include "store/partial_gradients.h"

#include "tensor/transfer.h"

namespace trireme {

namespace {

bool is_partial(const ParamMeta& param, int extent, PartialGradients::Of which,
                bool tokens_are_cut) {
  if (extent == 1 || !param.trainable) return false;
  const bool of_experts = param.view == MeshView::kExpert;
  if (of_experts != (which == PartialGradients::Of::kExpertTensor)) return false;
  if (which == PartialGradients::Of::kSameHeads)
    return param.cut.given() && param.cut.replicas(extent) > 1;
  return param.partial == TensorPartial::kWithHeads ||
         (param.partial == TensorPartial::kWithTokens && tokens_are_cut);
}

}  // namespace

std::int64_t PartialGradients::bytes_of(const std::vector<ParamMeta>& params,
                                        const StoreLayout& layout, Of which, bool tokens_are_cut) {
  std::int64_t count = 0;
  for (ParamIndex i = 0; i < static_cast<int>(params.size()); ++i) {
    if (is_partial(params[static_cast<std::size_t>(i)], layout.distribution(i).tensor.extent, which,
                   tokens_are_cut))
      count += layout.owned_shape(i).count();
  }
  return count * static_cast<std::int64_t>(sizeof(float));
}

PartialGradients::PartialGradients(Context& context, ParamStore& store, Of which,
                                   bool tokens_are_cut, Communicator& group)
    : context_(context), group_(group) {
  const std::int64_t bytes =
      bytes_of(store.params(), store.gradients().layout(), which, tokens_are_cut);
  if (bytes == 0) return;
  packed_ =
      Buffer(DType::kF32, {bytes / static_cast<std::int64_t>(sizeof(float))}, context.device());
  for (ParamIndex i = 0; i < static_cast<int>(store.params().size()); ++i) {
    const ParamMeta& param = store.params()[static_cast<std::size_t>(i)];
    if (!is_partial(param, store.gradients().layout().distribution(i).tensor.extent, which,
                    tokens_are_cut))
      continue;
    const TensorView owned = store.gradients().owned(i);
    if (owned.count() > 0) gradients_.push_back(owned);
  }
}

void PartialGradients::sum() {
  if (gradients_.empty()) return;
  std::byte* at = packed_.view().data;
  for (const TensorView& gradient : gradients_) {
    copy_bytes(context_, at, gradient.data, gradient.bytes());
    at += gradient.bytes();
  }
  group_.start_all_reduce(packed_.view()).wait();
  at = packed_.view().data;
  for (const TensorView& gradient : gradients_) {
    copy_bytes(context_, gradient.data, at, gradient.bytes());
    at += gradient.bytes();
  }
}

}  // namespace trireme
