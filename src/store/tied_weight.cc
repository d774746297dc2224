#include "store/tied_weight.h"

#include "kernels/elementwise/elementwise.h"
#include "tensor/transfer.h"

namespace trireme {

ParamIndex find_shared_home(const std::vector<ParamMeta>& params) {
  for (std::size_t i = 0; i < params.size(); ++i) {
    if (params[i].tied_rank.extent > 1 && params[i].trainable) return static_cast<ParamIndex>(i);
  }
  return kNoParam;
}

std::int64_t TiedWeight::buffer_bytes(const std::vector<ParamMeta>& params,
                                      const StoreLayout& layout) {
  const ParamIndex index = find_shared_home(params);
  if (index == kNoParam) return 0;
  const Shape shape = layout.distribution().accumulates_locally() ? layout.local_shape(index)
                                                                  : layout.owned_shape(index);
  return shape.count() * static_cast<std::int64_t>(sizeof(float));
}

TiedWeight::TiedWeight(Context& context, ParamStore& store, Communicator& pair)
    : context_(context), store_(store), pair_(pair), index_(find_shared_home(store.params())) {
  expect(index_ != kNoParam && pair.size() == 2, "a tied weight is on one rank alone");
  const std::int64_t bytes = buffer_bytes(store.params(), store.gradients().layout());
  if (bytes > 0)
    theirs_ =
        Buffer(DType::kF32, {bytes / static_cast<std::int64_t>(sizeof(float))}, context.device());
}

int TiedWeight::block() const { return store_.params()[static_cast<std::size_t>(index_)].block; }

void TiedWeight::add() {
  const Gradients& gradients = store_.gradients();
  const TensorView mine = gradients.layout().distribution().accumulates_locally()
                              ? gradients.sum(index_)
                              : gradients.owned(index_);
  if (mine.count() == 0) return;
  const TensorView theirs = theirs_.view().reshape(mine.shape);
  const Message send = message_of(1 - pair_.rank(), mine);
  const Message receive = message_of(1 - pair_.rank(), theirs);
  pair_.start_exchange({&send, 1}, {&receive, 1}).wait();
  if (pair_.rank() == 0) return accumulate(context_, mine, theirs);
  accumulate(context_, theirs, mine);
  copy_bytes(context_, mine.data, theirs.data, mine.bytes());
}

}  // namespace trireme
