#include "store/noise_squares.h"

#include "base/exact_sum.h"
#include "kernels/elementwise/elementwise.h"
#include "kernels/grad_norm/grad_norm.h"
#include "tensor/transfer.h"

namespace trireme {

NoiseSquares::NoiseSquares(Context& context, const ParamStore& store, AxisRank tensor)
    : context_(context),
      store_(store),
      tensor_(tensor),
      words_(DType::kF64, {ExactSum::kWords}, context.device()) {
  gradients_.reserve(store.params().size());
}

bool NoiseSquares::measures(ParamIndex index) const {
  const ParamMeta& param = store_.params()[static_cast<std::size_t>(index)];
  return param.trainable && param.shares == kNoParam && param.set_by_product &&
         param.view == MeshView::kDense && param.partial == TensorPartial::kNever &&
         !(param.cut.given() && param.cut.replicas(tensor_.extent) > 1);
}

void NoiseSquares::clear() { trireme::clear(context_, words_.view()); }

void NoiseSquares::add(int block) {
  gradients_.clear();
  const ParamRange range = store_.layout().block_params(block);
  for (ParamIndex i = range.first; i <= range.last; ++i) {
    const bool mine =
        store_.params()[static_cast<std::size_t>(i)].cut.given() || tensor_.index == 0;
    if (mine && measures(i)) gradients_.push_back(store_.gradients().sum(i));
  }
  add_squares(context_, words_.view(), gradients_);
}

double NoiseSquares::of_micro_batch() {
  ExactSum sum;
  copy_out(context_, std::as_writable_bytes(std::span(sum.words())), words_.view());
  return sum.value();
}

double NoiseSquares::of_step() {
  gradients_.clear();
  for (ParamIndex i = 0; i < static_cast<ParamIndex>(store_.params().size()); ++i) {
    if (measures(i)) gradients_.push_back(store_.gradients().counted(i));
  }
  ExactSum sum;
  grad_norm_accumulate(context_, sum, gradients_);
  return sum.value();
}

}  // namespace trireme
